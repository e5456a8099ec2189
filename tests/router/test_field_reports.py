# SPDX-License-Identifier: Apache-2.0
"""Problems that users of Dynamo and its peers have reported, as inputs of their kind.

Numbers are those of the project's list of field reports; where another file has the test already,
the list at the end of this docstring says so.

16, 17, 18: here. 19: tests/e2e/test_e2e_failures.py. 24: here and tests/replicas. 25: experiments/
check_streams.py. 26: here and test_router_core.py. 27, 28, 29: here. 41: here. 42:
tests/routing/test_binding.py. 44, 46: here. 47: here.
"""

import asyncio
import contextlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes_kit import empty_lanes
from relay_kit import FakeContext, RelayHarness, answers, breaks_after, waits
from test_router_core import LOCAL, FakePort, Harness, good, hangs, refuses
from view_kit import make_task, make_view

from controller.routing.registry import PLACEMENTS
from controller.runtime.replicas.links import Link
from controller.runtime.replicas.wire import WIRE, Done, Hello, frame
from controller.runtime.router.handover import forwarded_request
from controller.runtime.router.ports import engine_facts
from controller.types import Place, RoutingParams, Slo

pytestmark = pytest.mark.unit


def count(registry, name, **labels):
    return registry.get_sample_value(f"dynamo_equilibrium_{name}", labels or None) or 0.0


# 16, #11646: cache affinity keeps choosing a dead worker.


async def unreachable(stopped):
    raise ConnectionRefusedError("Connection refused (os error 111)")
    yield


async def test_16_a_worker_that_vanished_since_the_decision_is_replaced_once(unit_costs, tmp_path):
    router = Harness(unit_costs, FakePort(w1=unreachable, w2=good), tmp_path)
    chunks = await router.run()
    assert chunks != [LOCAL] and [w for w, _ in router.port.sent] == [1, 2]
    assert count(router.registry, "reroutes_total", reason="instance_gone") == 1
    assert sum(router.decisions().values()) == 1


class ChurningPort(FakePort):
    """As Dynamo's client: a request to a worker that has gone fails when it is sent."""

    def open(self, worker_id, request, context):
        self.workers.setdefault(worker_id, unreachable)
        stream = super().open(worker_id, request, context)
        if self.workers[worker_id] is unreachable:
            del self.workers[worker_id]
        return stream


@pytest.mark.parametrize("seed", range(5))
async def test_16_churn_in_mid_load_loses_nobody(unit_costs, tmp_path, seed):
    rng, port = Random(seed), ChurningPort(w1=good, w2=good)
    router = Harness(unit_costs, port, tmp_path, max_wait_s=0.5, prefill_timeout_s=0.5)

    async def churn():
        for step in range(40):
            kind = rng.choice([good, unreachable, refuses, None])
            name = rng.randrange(1, 5)
            if kind is None:
                port.workers.pop(name, None)
            else:
                port.workers[name] = kind
            router.queues.sync(port.live(), float(step))
            await asyncio.sleep(0)

    served = asyncio.gather(*(router.run(prompt=rng.randrange(1, 3000)) for _ in range(60)))
    await churn()
    assert all(len(chunks) == 1 for chunks in await served)
    assert sum(router.decisions().values()) == 60
    assert router.queues.in_flight() == router.queues.waiting() == 0


# 17, #13100: pins to a removed worker for ever; an empty snapshot is not "all gone".


async def test_17_a_session_leaves_a_worker_that_has_gone(unit_costs, tmp_path):
    relay = RelayHarness(unit_costs, tmp_path, {5: answers, 9: answers})
    session = {"agent_context": {"session_id": "s"}}
    await relay.run(**session)
    pinned = relay.decode.sent[-1][0]
    (other,) = {5, 9} - {pinned}
    kept = relay.decode.workers.pop(pinned)
    await relay.run(**session)
    assert relay.decode.sent[-1][0] == other
    relay.decode.workers[pinned] = kept


async def test_17_an_empty_snapshot_forgets_no_session(unit_costs, tmp_path):
    relay = RelayHarness(unit_costs, tmp_path, {5: answers, 9: answers})
    session = {"agent_context": {"session_id": "s"}}
    await relay.run(**session)
    pinned, workers = relay.decode.sent[-1][0], dict(relay.decode.workers)
    relay.decode.workers.clear()
    with pytest.raises(Exception, match="HTTP 503"):
        await relay.run(**session)
    relay.decode.workers.update(workers)
    for _ in range(5):
        await relay.run(**session)
        assert relay.decode.sent[-1][0] == pinned


# 18, #13622: registered before it can serve: every request goes there first and fails.


async def test_18_a_worker_that_is_listed_too_early_costs_one_request_a_probe(unit_costs, tmp_path):
    port = FakePort(w1=unreachable, w2=good)
    router = Harness(unit_costs, port, tmp_path)
    for _ in range(20):
        assert await router.run() != [LOCAL]
    assert [w for w, _ in port.sent].count(1) == 1


# 24, #12315: admitted load leaks when a client vanishes.


async def test_24_a_thousand_vanished_clients_leave_nothing(unit_costs, tmp_path):
    rng = Random(7)
    decode = {5: answers, 6: waits, 7: breaks_after(2)}
    relay = RelayHarness(unit_costs, tmp_path, decode, policy="toll")
    relay.decode_state.sync(decode)

    async def one(number):
        context = FakeContext(f"r{number}")
        running = asyncio.create_task(relay.run(context, prompt=rng.randrange(1, 900)))
        for _ in range(rng.randrange(30)):
            await asyncio.sleep(0)
        if rng.random() < 0.5:
            context.stop.set()
        else:
            running.cancel()
        await asyncio.wait({running}, timeout=0.05)
        context.stop.set()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await running

    for start in range(0, 1000, 50):
        await asyncio.gather(*(one(number) for number in range(start, start + 50)))
    await asyncio.sleep(0.2)
    assert relay.relay.open_streams == relay.core.open_requests == 0
    assert relay.queues.waiting() == relay.queues.in_flight() == 0
    assert relay.core.pinned.total_tokens() == 0
    assert all(relay.loads.context_tokens(w, 1e9) == 0 for w in decode)
    assert relay.decode_state.view(1e9).local_prefills.sum() == 0
    assert relay.decode_state.view(1e9).held_tokens.sum() == 0


# 26, sglang#31206: prefill's breaker open, decode still dispatched; 4xx open the breaker.


async def test_26_a_prefill_that_fails_never_leaves_half_a_pair(unit_costs, tmp_path):
    async def fails(request, stopped):
        raise ValueError("Disconnected: Stream ended before generation completed")
        yield

    relay = RelayHarness(unit_costs, tmp_path, {5: answers}, prefill=fails)
    chunks = await relay.run(max_tokens=3)
    assert sum(len(c["token_ids"]) for c in chunks) == 3
    assert len(relay.decode.sent) == 1
    _, request, _ = relay.decode.sent[0]
    assert "prefill_result" not in request and "x-bypass-remote-prefill" in request["annotations"]


async def test_26_a_worker_that_fails_at_once_draws_nobody(unit_costs, tmp_path):
    async def slow(stopped):
        await asyncio.sleep(0.05)
        yield {"token_ids": [7], "disaggregated_params": {"kv_transfer_params": {"handle": 1}}}

    for failure in (unreachable, refuses):
        port = FakePort(w1=failure, w2=slow)
        router = Harness(unit_costs, port, tmp_path)
        router.queues.sync(port.live())
        # Six wait for the one that works; the other one, idle, gets a request and fails it.
        only = frozenset({2})
        body = {"token_ids": list(range(1500))}

        async def run(who, router=router, body=body):
            return [c async for c in router.core.prefill(body, "r", None, only=who)]

        waiting = [asyncio.create_task(run(None if k else only)) for k in range(6)]
        assert LOCAL not in [chunks[0] for chunks in await asyncio.gather(*waiting)]


async def bad_input(stopped):
    raise ValueError("BackendInvalidArgument: prompt is empty")
    yield


async def test_26_ten_bad_requests_close_no_worker(unit_costs, tmp_path):
    port = FakePort(w1=bad_input)
    router = Harness(unit_costs, port, tmp_path)
    for _ in range(10):
        await router.run()
    port.workers[1] = good
    assert await router.run() != [LOCAL]
    assert count(router.registry, "reroutes_total", reason="instance_gone") == 0


# 27, sglang#14305: a miss goes to the smallest tree even if that worker is saturated.


@pytest.mark.parametrize("policy", ["toll", "ampd", "least_ttft", "always_remote", "kv_cost"])
def test_27_a_prompt_that_nobody_knows_goes_where_the_queue_is_short(unit_costs, policy):
    rule = PLACEMENTS[policy](unit_costs, Slo(1000.0, 50.0), RoutingParams(), Random(0))
    waiting = empty_lanes(2)
    waiting.fly(0, waiting.new_task(0.0, 50_000), 50.0, 0.0)
    columns = {"prefill_queue": [50.0, 0.0], "cached": [0, 0], "tokens": [50_000, 0]}
    view = make_view(ttft=[3.0, 0.1], itl=[1.0], waiting=waiting, **columns)
    assert rule.place(make_task(increment=500), view).worker_id == view.prefill.worker_ids[1]


# 28: a step budget as large as the KV cache means that nobody has set one.


@given(st.integers(1, 4096), st.integers(16, 128), st.integers(1, 1 << 20))
def test_28_a_budget_of_the_whole_cache_counts_as_unknown(blocks, size, budget):
    card = {
        "kv_cache_block_size": size,
        "runtime_config": {"total_kv_blocks": blocks, "max_num_batched_tokens": budget},
    }
    facts = engine_facts(card)
    assert facts.kv_tokens == blocks * size
    assert facts.budget_tokens == (budget if budget < blocks * size else None)


# 29, #1074: a prefill queue that never drains.


async def test_29_a_queue_that_does_not_drain_shows_its_age_and_falls_back(unit_costs, tmp_path):
    port = FakePort(w1=hangs)
    router = Harness(unit_costs, port, tmp_path, max_wait_s=0.1, prefill_timeout_s=0.3)
    stuck = asyncio.create_task(router.run(prompt=3000))
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(router.run(prompt=3000))
    await asyncio.sleep(0.02)
    assert router.queues.waits_now()[0][0] == 3000
    assert await waiting == [LOCAL] and await stuck == [LOCAL]
    assert router.decisions()[("local", "wait_limit")] == 1.0


# 41: decisions by place and reason sum to the requests, whatever happens to them.


async def test_41_every_request_is_counted_once(unit_costs, tmp_path):
    port = FakePort(w1=good, w2=hangs, w3=refuses)
    router = Harness(unit_costs, port, tmp_path, max_wait_s=0.05, prefill_timeout_s=0.05)
    rng = Random(11)
    running = [asyncio.create_task(router.run(prompt=rng.randrange(1, 2500))) for _ in range(120)]
    for task in rng.sample(running, 40):
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    started = len(router.records())
    assert sum(router.decisions().values()) == started
    outcomes = [
        sample.value
        for family in router.registry.collect()
        for sample in family.samples
        if sample.name == "dynamo_equilibrium_requests_total"
    ]
    assert sum(outcomes) == started


# 44: a cold short prompt can go local (conditional disaggregation never lets it).


@pytest.mark.parametrize("policy", ["toll", "ampd", "least_ttft"])
def test_44_a_cold_short_prompt_may_prefill_where_it_streams(unit_costs, policy):
    rule = PLACEMENTS[policy](unit_costs, Slo(1000.0, 50.0), RoutingParams(), Random(0))
    view = make_view(
        ttft=[5.0], prefill_queue=[5.0], tokens=[5000], itl=[0.011], decode_queue=[0.0], bound=0
    )
    assert rule.place(make_task(increment=17), view).place is Place.LOCAL


# 46, #14661: pinning only the decode worker fails disaggregated requests.


@given(
    st.dictionaries(
        st.sampled_from(
            ["backend_instance_id", "decode_worker_id", "prefill_worker_id", "dp_rank", "priority"]
        ),
        st.integers(0, 2**63),
    ),
    st.none() | st.integers(0, 7),
)
def test_46_a_prefill_leg_names_its_prefill_worker_and_rank_only(routing, rank):
    sent = forwarded_request({"routing": routing}, 77, rank)["routing"]
    assert sent["prefill_worker_id"] == 77
    assert not {"backend_instance_id", "decode_worker_id"} & set(sent)
    assert sent.get("dp_rank") == rank
    assert sent.get("priority") == routing.get("priority")


# 47: old and new routers at once.


async def test_47_a_replica_of_another_version_shares_no_queue(caplog):
    heard = []

    class Wire:
        aborted = False

        def abort(self):
            self.aborted = True

    link, wire = Link(lambda at, message: heard.append(message), lambda at: None), Wire()
    link.connection_made(wire)
    link.data_received(frame(Hello("old", WIRE + 1)) + frame(Done(1)))
    assert wire.aborted and not heard and not link.greeted
    assert "version_skew" in caplog.text
