# SPDX-License-Identifier: Apache-2.0
"""The life of one request in the router, against prefill workers that misbehave in every way."""

import asyncio
import contextlib
import json
from random import Random

import pytest
from prometheus_client import CollectorRegistry
from relay_kit import router_row

from controller.routing.inflight import InFlightBound
from controller.routing.registry import PLACEMENTS
from controller.runtime.clock import Clock
from controller.runtime.router.core import CoreSettings, RouterCore
from controller.runtime.router.decision_log import DecisionLog
from controller.runtime.router.decode_state import DecodeState
from controller.runtime.router.hints import Objectives
from controller.runtime.router.queues import PrefillQueues, WorkerGoneError
from controller.runtime.router.router_metrics import RouterMetrics
from controller.types import RoutingParams, Slo

pytestmark = pytest.mark.unit

GOOD = {"token_ids": [7], "disaggregated_params": {"kv_transfer_params": {"handle": 1}}}
LOCAL = {"token_ids": [], "disaggregated_params": {}}


class FakePort:
    """Prefill workers by script: each worker maps to an async generator function."""

    def __init__(self, **workers):
        self.workers = {int(k.removeprefix("w")): v for k, v in workers.items()}
        self.sent = []
        self.ended = 0
        self.released = []
        self.stock = None
        self.stock_ended = []

    def live(self):
        return tuple(self.workers)

    def rank(self, unit_id):
        return None

    async def cached_tokens(self, token_ids):
        return {}

    async def stock_choice(self, token_ids, request_id):
        return self.stock

    async def stock_done(self, request_id):
        self.stock_ended.append(request_id)

    def open(self, worker_id, request, context):
        self.sent.append((worker_id, request))
        return FakeStream(self, self.workers[worker_id])

    async def release(self, request, chunk):
        self.released.append(chunk)


class FakeStream:
    def __init__(self, port, script):
        self._port = port
        self._script = script
        self.stopped = asyncio.Event()

    def stop(self):
        self.stopped.set()

    async def chunks(self):
        try:
            async for chunk in self._script(self.stopped):
                yield chunk
        finally:
            self._port.ended += 1


async def good(stopped):
    yield GOOD


async def refuses(stopped):
    yield {"token_ids": [], "disaggregated_params": None, "status": "error"}


async def breaks(stopped):
    raise ConnectionResetError("gone")
    yield


async def ends_empty(stopped):
    return
    yield


async def hangs(stopped):
    await stopped.wait()
    return
    yield


async def finishes_although_stopped(stopped):
    await stopped.wait()
    yield GOOD


async def breaks_after_the_answer(stopped):
    yield GOOD
    raise ConnectionResetError("gone")


class Harness:
    def __init__(self, costs, port, tmp_path, policy="always_remote", **settings):
        self.shadow = False
        self.registry = CollectorRegistry()
        self.log_path = tmp_path / "decisions.jsonl"
        self.port = port
        self.queues = PrefillQueues(InFlightBound(1000), 10)
        self.log = DecisionLog(self.log_path, router_row(policy))
        limits = {"max_wait_s": 5.0, "prefill_timeout_s": 5.0, "sticky_sessions": True} | settings
        rule = PLACEMENTS[policy](costs, Slo(1000, 50), RoutingParams(), Random(0))
        self.core = RouterCore(
            rule,
            costs,
            Objectives(Slo(1000, 50)),
            CoreSettings(**limits),
            port,
            self.queues,
            DecodeState(10),
            Clock(),
            RouterMetrics(self.registry, policy),
            self.log,
            lambda: self.shadow,
        )

    async def run(self, prompt=100, **request):
        body = {"token_ids": list(range(prompt)), "extra_args": {"keep": "me"}} | request
        return [chunk async for chunk in self.core.prefill(body, "r1", None)]

    def records(self):
        self.log.close()
        rows = [json.loads(line) for line in self.log_path.read_text().splitlines()]
        return [row for row in rows if row["kind"] == "decision"]

    def decisions(self):
        return {
            tuple(sample.labels[k] for k in ("decision", "reason")): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "dynamo_equilibrium_route_decisions_total"
        }


@pytest.fixture
def harness(unit_costs, tmp_path):
    def build(policy="always_remote", settings=None, **workers):
        return Harness(unit_costs, FakePort(**workers), tmp_path, policy, **(settings or {}))

    return build


async def test_a_remote_prefill_is_passed_on_and_its_unknown_fields_too(harness):
    router = harness(w1=good)
    assert await router.run(routing={"dp_rank": 3, "priority_jump": 2.0}) == [GOOD]
    _, sent = router.port.sent[0]
    assert sent["extra_args"] == {"keep": "me"}
    assert sent["routing"] == {"priority_jump": 2.0, "prefill_worker_id": 1}
    assert router.decisions() == {("remote", "least_loaded"): 1.0}
    assert router.records()[0]["outcome"] == "handed_over"


async def test_an_empty_pool_answers_local(harness):
    router = harness()
    assert await router.run() == [LOCAL]
    assert router.decisions() == {("local", "prefill_pool_empty"): 1.0}


@pytest.mark.parametrize("failure", [refuses, breaks, ends_empty])
async def test_a_failed_prefill_is_tried_once_elsewhere(harness, failure):
    router = harness(w1=failure, w2=good)
    assert await router.run() == [GOOD]
    assert [worker for worker, _ in router.port.sent] == [1, 2]
    assert router.records()[0]["reroutes"] == 1


@pytest.mark.parametrize("failure", [refuses, breaks, ends_empty])
async def test_two_failures_end_in_a_local_prefill(harness, failure):
    router = harness(w1=failure, w2=failure, w3=good)
    assert await router.run() == [LOCAL]
    assert len(router.port.sent) == 2
    assert router.decisions() == {("local", "prefill_failed"): 1.0}
    assert router.queues.in_flight() == router.queues.waiting() == 0


async def test_a_silent_worker_is_given_up_and_its_stream_closed(harness):
    router = harness(w1=hangs, settings={"prefill_timeout_s": 0.05})
    assert await router.run() == [LOCAL]
    await asyncio.sleep(0)
    assert router.port.ended == 1
    assert router.queues.in_flight() == 0


async def test_an_abandoned_prefill_that_finishes_all_the_same_is_released(harness):
    router = harness(w1=finishes_although_stopped, settings={"prefill_timeout_s": 0.05})
    assert await router.run() == [LOCAL]
    await asyncio.sleep(0.01)
    assert router.port.released == [GOOD]


async def test_a_cancelled_requests_prefill_may_finish_and_is_released(harness):
    # Never stopped before: Dynamo would lose the answer, and the blocks would stay pinned.
    stops = []

    async def finishes(stopped):
        await asyncio.sleep(0.03)
        stops.append(stopped.is_set())
        yield GOOD

    router = harness(w1=finishes)
    request = asyncio.create_task(router.run())
    await asyncio.sleep(0.01)
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
    await asyncio.sleep(0.05)
    assert stops == [False]
    assert router.port.released == [GOOD]


async def test_a_cancelled_requests_prefill_that_hangs_is_stopped_in_the_end(harness):
    router = harness(w1=finishes_although_stopped, settings={"prefill_timeout_s": 0.05})
    request = asyncio.create_task(router.run())
    await asyncio.sleep(0.01)
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
    await asyncio.sleep(0.1)
    assert router.port.ended == 1
    assert router.port.released == [GOOD]


async def test_a_hand_over_that_was_delivered_is_not_released(harness):
    router = harness(w1=good)
    assert await router.run() == [GOOD]
    await asyncio.sleep(0.01)
    assert router.port.released == []


async def test_a_wait_beyond_the_limit_goes_local(harness):
    router = harness(w1=hangs, settings={"max_wait_s": 0.05, "prefill_timeout_s": 0.2})
    blocker = asyncio.create_task(router.run(prompt=3000))
    await asyncio.sleep(0.01)
    assert await router.run(prompt=3000) == [LOCAL]
    assert router.decisions() == {("local", "wait_limit"): 1.0}
    blocker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await blocker
    # What was sent is not stopped at once, and counts until it ends: so does its work.
    assert (router.queues.in_flight(), router.queues.waiting()) == (1, 0)
    await asyncio.sleep(0.3)
    assert router.queues.in_flight() == 0


async def test_a_second_placement_has_only_the_time_that_the_first_one_left(harness):
    async def takes_its_time(stopped):
        await asyncio.sleep(0.25)  # more than is left, less than it would have been given
        yield GOOD

    settings = {"max_wait_s": 0.1, "prefill_timeout_s": 0.3}
    router = harness(w1=hangs, w2=takes_its_time, settings=settings)
    assert await router.run() == [LOCAL]
    assert [worker for worker, _ in router.port.sent] == [1, 2]
    assert router.decisions() == {("local", "wait_limit"): 1.0}
    # The second worker is not to blame: it may finish, what it hands over is released, and it
    # gets the next request.
    await asyncio.sleep(0.3)
    assert router.port.released == [GOOD]
    router.port.workers[2] = good
    assert await router.run() == [GOOD]
    assert router.port.sent[-1][0] == 2


async def test_nothing_is_sent_when_no_time_is_left(harness):
    router = harness(w1=good)
    body = {"token_ids": [1, 2, 3]}
    chunks = [chunk async for chunk in router.core.prefill(body, "r1", None, answer_by_s=0.0)]
    assert chunks == [LOCAL]
    assert router.port.sent == []
    assert router.decisions() == {("local", "wait_limit"): 1.0}


async def test_after_the_hand_over_a_failure_is_an_error_not_a_second_answer(harness):
    router = harness(w1=breaks_after_the_answer, w2=good)
    with pytest.raises(Exception, match="gone"):
        await router.run()
    assert router.records()[0]["outcome"] == "failed"


async def test_a_worker_that_broke_is_left_alone_for_a_while_and_then_probed(harness):
    router = harness(w1=breaks, w2=good)
    for _ in range(3):
        assert await router.run() == [GOOD]
    assert [worker for worker, _ in router.port.sent] == [1, 2, 2, 2]
    await asyncio.sleep(0.55)
    router.port.workers[1] = good
    assert await router.run() == [GOOD]
    assert router.port.sent[-1][0] == 1


async def test_refusals_open_no_breaker(harness):
    router = harness(w1=refuses, w2=good)
    for _ in range(3):
        await router.run()
    assert [worker for worker, _ in router.port.sent] == [1, 2, 1, 2, 1, 2]


async def test_cancelled_requests_leave_nothing_behind(harness):
    router = harness(w1=hangs, settings={"prefill_timeout_s": 0.1})
    rng = Random(3)
    for _ in range(200):
        request = asyncio.create_task(router.run(prompt=rng.randrange(1, 3000)))
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
    await asyncio.sleep(0.2)
    assert router.queues.in_flight() == router.queues.waiting() == 0
    assert router.port.ended == len(router.port.sent)


async def test_only_workers_that_can_serve_a_request_get_it(harness):
    router = harness(w1=good, w2=breaks, w3=good)

    async def run(only):
        body = {"token_ids": list(range(100))}
        return [chunk async for chunk in router.core.prefill(body, "r1", None, only=only)]

    assert await run(frozenset({3})) == [GOOD]
    assert await run(frozenset({2})) == [LOCAL]
    assert await run(frozenset()) == [LOCAL]
    assert [worker for worker, _ in router.port.sent] == [3, 2]


async def test_n_above_one_is_never_handed_over(harness):
    router = harness(w1=good)
    assert await router.run(sampling_options={"n": 2}) == [LOCAL]
    assert router.decisions() == {("local", "multiple_sequences"): 1.0}


async def test_every_request_has_one_decision_and_one_record(harness):
    router = harness(policy="ampd", w1=good, w2=breaks, w3=refuses)
    for _ in range(40):
        await router.run()
    assert sum(router.decisions().values()) == 40
    assert len(router.records()) == 40


async def test_later_rounds_of_a_session_know_their_history(harness):
    router = harness(w1=good)
    session = {"agent_context": {"session_id": "s"}}
    await router.run(prompt=200, **session)
    await router.run(prompt=500, **session)
    # 200 tokens are three whole blocks of 64.
    assert [r["history_tokens"] for r in router.records()] == [0, 192]


async def test_in_shadow_stock_acts_and_the_log_says_what_would_differ(harness):
    router = harness(policy="always_local", w1=good, w2=good)
    router.shadow, router.port.stock = True, 2
    assert await router.run() == [GOOD]
    assert [worker for worker, _ in router.port.sent] == [2]
    record = router.records()[0]
    assert (record["place"], record["reason"]) == ("remote", "shadow_stock")
    assert (record["would_place"], record["would_reason"]) == ("local", "always_local")
    assert router.port.stock_ended == ["r1"]


async def test_in_shadow_nothing_waits_at_the_router(harness):
    router = harness(w1=hangs, settings={"prefill_timeout_s": 0.2})
    router.shadow = True
    waiting = [asyncio.create_task(router.run(prompt=3000)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert len(router.port.sent) == 3
    await asyncio.gather(*waiting)


async def test_in_shadow_what_no_router_may_do_is_still_not_done(harness):
    router = harness(w1=good)
    router.shadow = True
    assert await router.run(sampling_options={"n": 2}) == [LOCAL]
    router.port.workers.clear()
    assert await router.run() == [LOCAL]


async def test_acting_again_leaves_no_trace_of_shadow_in_the_log(harness):
    router = harness(w1=good)
    await router.run()
    assert router.records()[0]["would_place"] is None


async def test_in_shadow_stocks_books_are_closed_also_when_the_worker_has_just_left(harness):
    router = harness(w1=good)
    router.shadow, router.port.stock = True, 1

    def gone(*args, **kwargs):
        raise WorkerGoneError("left")

    router.queues.enqueue = gone
    assert await router.run() == [LOCAL]
    assert router.port.stock_ended == ["r1"]
