# SPDX-License-Identifier: Apache-2.0
"""Every stage of a request has a deadline, and what happens then has a reason."""

import asyncio

import pytest
from relay_kit import HANDOVER, FakeContext, RelayHarness, answers, waits
from test_router_core import Harness, good, hangs

pytestmark = pytest.mark.unit


def harness(costs, tmp_path, decode, **settings):
    return RelayHarness(costs, tmp_path, decode, **settings)


async def slow_to_pull(request, stopped):
    """Never begins with a hand-over; prefills by itself at once."""
    if "prefill_result" in request:
        await stopped.wait()
        return
    async for chunk in answers(request, stopped):
        yield chunk


async def test_a_transfer_that_hangs_becomes_a_local_prefill(unit_costs, tmp_path):
    relay = harness(unit_costs, tmp_path, {5: slow_to_pull}, transfer_s=0.05)
    chunks = await relay.run(max_tokens=3)
    assert [t for c in chunks for t in c["token_ids"]] == [100, 101, 102]
    assert [(r["place"], r["reason"]) for r in relay.records()] == [
        ("remote", "least_loaded"),
        ("local", "transfer_limit"),
    ]
    # The hand-over was sent to a decode worker: it is never used or released again.
    assert relay.prefill.released == []


async def test_a_local_leg_that_hangs_is_answered_with_503(unit_costs, tmp_path):
    relay = harness(unit_costs, tmp_path, {5: waits}, transfer_s=0.02, silence_s=0.3)
    with pytest.raises(Exception, match="did not begin in time"):
        await relay.run()
    assert relay.relay.open_streams == 0
    assert [r["finish"] for r in relay.records("outcome")] == ["broken", "error"]


async def test_too_many_streams_are_refused_with_529_and_counted(unit_costs, tmp_path):
    relay = harness(unit_costs, tmp_path, {5: waits}, most_streams=3)
    contexts = [FakeContext(f"r{k}") for k in range(3)]
    open_streams = [asyncio.create_task(relay.run(context)) for context in contexts]
    await relay.settle()
    with pytest.raises(Exception, match=r"HTTP 529: .*max_requests"):
        await relay.run(FakeContext("late"))
    for context in contexts:
        context.stop.set()
    await asyncio.gather(*open_streams)
    assert relay.relay.open_streams == 0
    labels = {"decision": "none", "reason": "overloaded", "policy": "always_remote"}
    name = "dynamo_equilibrium_route_decisions_total"
    assert relay.registry.get_sample_value(name, labels) == 1
    assert len(relay.records()) == 4


async def test_a_core_that_is_full_answers_local_at_once(unit_costs, tmp_path):
    from test_router_core import FakePort

    router = Harness(unit_costs, FakePort(w1=hangs), tmp_path, most_requests=2)
    waiting = [asyncio.create_task(router.run()) for _ in range(2)]
    await asyncio.sleep(0)
    await router.run()
    assert router.decisions()[("local", "overloaded")] == 1.0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert router.core.open_requests == 0
    assert sum(router.decisions().values()) == 3


async def test_kv_is_pinned_from_the_hand_over_to_the_first_token(unit_costs, tmp_path):
    gate = asyncio.Event()

    async def gated(request, stopped):
        await gate.wait()
        async for chunk in answers(request, stopped):
            yield chunk

    relay = harness(unit_costs, tmp_path, {5: gated})
    stream = asyncio.create_task(relay.run(prompt=100))
    await asyncio.sleep(0.02)
    assert relay.core.pinned.total_tokens() == 100
    gate.set()
    await stream
    assert relay.core.pinned.total_tokens() == 0


async def test_pinned_kv_whose_leg_never_came_is_swept_with_the_lease(unit_costs, tmp_path):
    from test_router_core import FakePort

    router = Harness(unit_costs, FakePort(w1=good), tmp_path, handover_s=0.02)
    await router.run(prompt=100)
    assert router.core.pinned.total_tokens() == 100
    await asyncio.sleep(0.03)
    router.core.sweep()
    assert router.core.pinned.total_tokens() == 0
    swept = router.registry.get_sample_value(
        "dynamo_equilibrium_leases_swept_total", {"lease": "handover"}
    )
    assert swept == 1


async def test_a_worker_whose_kv_is_pinned_gets_no_more_until_there_is_room(unit_costs, tmp_path):
    from test_router_core import FakePort

    port = FakePort(w1=good, w2=good)
    router = Harness(unit_costs, port, tmp_path, handover_s=30.0)
    router.core.equip(1, 1000)

    async def run(name, prompt):
        async for _ in router.core.prefill({"token_ids": list(range(prompt))}, name, None):
            pass

    await run("r1", 700)
    assert router.core.pinned.tokens(1) == 700
    # By load alone it would be worker 1's turn each time: it is the first of two idle ones.
    for number in range(2, 5):
        await run(f"r{number}", 600)
    assert [worker for worker, _ in port.sent] == [1, 2, 2, 2]
    router.core.decode_begun("r1")
    await run("r5", 600)
    assert port.sent[-1][0] == 1


async def test_the_prefill_charge_ends_with_its_first_chunk(unit_costs, tmp_path):
    more = asyncio.Event()

    async def answers_and_goes_on(request, stopped):
        yield HANDOVER
        await more.wait()

    relay = harness(unit_costs, tmp_path, {5: answers}, prefill=answers_and_goes_on)
    await relay.run()
    assert relay.queues.in_flight() == 0
    more.set()
