# SPDX-License-Identifier: Apache-2.0
"""The life of one stream in the relay, against workers that misbehave in every way."""

import asyncio
import contextlib
from random import Random

import pytest
from dynamo.llm.exceptions import HttpError, InvalidArgument
from relay_kit import (
    HANDOVER,
    FakeContext,
    RelayHarness,
    answers,
    breaks_after,
    hands_over,
    waits,
)

from controller.runtime.clock import Clock
from controller.runtime.router.handover import BYPASS_ANNOTATION, KvLease

pytestmark = pytest.mark.unit

WHOLE = list(range(100, 104))


@pytest.fixture
def harness(unit_costs, tmp_path):
    return lambda decode, **settings: RelayHarness(unit_costs, tmp_path, decode, **settings)


def tokens(chunks):
    return [token for chunk in chunks for token in chunk["token_ids"]]


async def test_a_stream_passes_untouched_behind_a_remote_prefill(harness):
    relay = harness({1: answers})
    chunks = await relay.run(
        stop_conditions={"max_tokens": 4, "min_tokens": 2}, routing={"dp_rank": 3, "priority": 1}
    )
    assert tokens(chunks) == WHOLE
    assert chunks[0] == {"token_ids": [100], "index": 0, "log_probs": [-0.5]}
    prefill = relay.prefill.sent[0]
    assert prefill["stop_conditions"] == {"max_tokens": 1, "min_tokens": 2}
    assert prefill["extra_args"] == {"keep": "me"}
    ((_, decode, leg),) = relay.decode.sent
    assert decode["stop_conditions"] == {"max_tokens": 4, "min_tokens": 2}
    assert decode["prefill_result"]["disaggregated_params"] == HANDOVER["disaggregated_params"]
    assert decode["routing"] == {"priority": 1}
    assert BYPASS_ANNOTATION not in decode.get("annotations", ())
    assert leg == "r1"
    await relay.settle()
    assert relay.records()[0]["outcome"] == "handed_over"
    assert relay.prefill.released == []
    assert relay.loads.context_tokens(1, 0) == 0
    assert relay.relay.open_streams == 0


async def test_a_local_prefill_carries_the_bypass_annotation(harness):
    relay = harness({1: answers}, policy="always_local")
    assert tokens(await relay.run(annotations=["mine"])) == WHOLE
    ((_, decode, _),) = relay.decode.sent
    assert decode["annotations"] == ["mine", BYPASS_ANNOTATION]
    assert "prefill_result" not in decode
    assert relay.prefill.sent == []


async def test_several_choices_are_prefilled_locally_and_never_migrated(harness):
    relay = harness({1: breaks_after(2)})
    with pytest.raises(HttpError):
        await relay.run(sampling_options={"n": 2})
    assert relay.prefill.sent == []
    assert len(relay.decode.sent) == 1


async def test_a_broken_stream_goes_on_elsewhere_with_what_it_has(harness):
    relay = harness({1: breaks_after(1), 2: breaks_after(1)})
    relay.loads.book(2, 10_000)
    relay.decode.workers[2] = answers
    chunks = await relay.run()
    assert tokens(chunks) == WHOLE
    assert [worker for worker, _, _ in relay.decode.sent] == [1, 2]
    _, second, leg = relay.decode.sent[1]
    assert second["token_ids"] == [*range(100), 100]
    assert second["stop_conditions"]["max_tokens"] == 3
    assert leg == "r1-1"
    assert chunks[-1]["completion_usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 4,
        "total_tokens": 104,
        "prompt_tokens_details": {"cached_tokens": 100},
    }
    # The prefill is placed again, under an id that the engine does not know yet.
    assert [context.id() for context in relay.prefill.contexts] == ["r1", "r1-1"]
    await relay.settle()
    assert [record["migrations"] for record in relay.records()] == [0, 1]
    assert relay.counted("migrations_total") == 1


async def test_migrations_end_at_the_limit_and_the_client_gets_503(harness):
    relay = harness({1: breaks_after(0), 2: breaks_after(0)}, migration_limit=2)
    with pytest.raises(HttpError) as failure:
        await relay.run()
    assert failure.value.code == 503
    assert len(relay.decode.sent) == 3
    assert relay.counted("migrations_total") == 2


async def test_a_stream_that_ends_without_a_finish_is_a_broken_one(harness):
    async def ends_early(request, stopped):
        yield {"token_ids": [100], "index": 0}

    relay = harness({1: ends_early, 2: answers})
    relay.loads.book(2, 10_000)
    assert tokens(await relay.run()) == WHOLE


async def test_an_answer_that_lost_only_its_last_chunk_is_closed_here(harness):
    async def all_but_the_end(request, stopped):
        for token in WHOLE:
            yield {"token_ids": [token], "index": 0}
        raise ConnectionResetError("gone")

    relay = harness({1: all_but_the_end})
    chunks = await relay.run()
    assert tokens(chunks) == WHOLE
    assert chunks[-1]["finish_reason"] == "length"
    assert len(relay.decode.sent) == 1


async def test_a_break_after_the_finish_costs_nothing(harness):
    async def breaks_at_the_end(request, stopped):
        async for chunk in answers(request, stopped):
            yield chunk
        raise ConnectionResetError("gone")

    relay = harness({1: breaks_at_the_end})
    assert tokens(await relay.run()) == WHOLE
    assert len(relay.decode.sent) == 1


@pytest.mark.parametrize("text", ["BackendInvalidArgument: bad", "BackendUnknown: boom"])
async def test_errors_that_are_not_a_break_are_passed_on_and_open_no_breaker(harness, text):
    relay = harness({1: breaks_after(0, ValueError(text))})
    for count in (1, 2, 3):
        with pytest.raises(Exception) as failure:
            await relay.run()
        assert not isinstance(failure.value, HttpError)
        assert isinstance(failure.value, InvalidArgument) == ("InvalidArgument" in text)
        assert len(relay.decode.sent) == count
    relay.decode.workers[1] = answers
    assert tokens(await relay.run()) == WHOLE


async def test_a_worker_that_broke_is_left_alone_for_a_while(harness):
    relay = harness({1: breaks_after(0), 2: answers})
    relay.loads.book(2, 10_000)
    for _ in range(3):
        assert tokens(await relay.run()) == WHOLE
    assert [worker for worker, _, _ in relay.decode.sent] == [1, 2, 2, 2]


async def test_the_only_worker_is_tried_although_it_broke(harness):
    relay = harness({1: breaks_after(1)})
    relay_run = asyncio.create_task(relay.run())
    await asyncio.sleep(0)
    relay.decode.workers[1] = answers
    with contextlib.suppress(HttpError):
        await relay_run
    assert tokens(await relay.run()) == WHOLE


async def test_no_decode_worker_is_a_503_and_nothing_is_prefilled(harness):
    relay = harness({})
    with pytest.raises(HttpError) as failure:
        await relay.run()
    assert failure.value.code == 503
    assert relay.prefill.sent == []


async def test_a_session_returns_to_its_worker_and_counts_its_history_there(harness):
    relay = harness({1: answers, 2: answers})
    session = {"agent_context": {"session_id": "s"}}
    for prompt in (200, 500, 600):
        await relay.run(prompt=prompt, **session)
    first = relay.decode.sent[0][0]
    assert [worker for worker, _, _ in relay.decode.sent] == [first] * 3
    del relay.decode.workers[first]
    await relay.run(prompt=700, **session)
    await relay.settle()
    # Whole blocks of 64; nothing of it is on the other worker.
    assert [r["history_tokens"] for r in relay.records()] == [0, 192, 448, 0]


class FrozenClock(Clock):
    """A clock that jumps: as if the process had been stopped."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "jump_s", 0.0)

    def now(self):
        return super().now() + self.jump_s


async def test_a_hand_over_that_is_too_old_is_prefilled_again(harness):
    clock = FrozenClock()

    async def frozen_once(request, stopped):
        if not clock.jump_s:
            object.__setattr__(clock, "jump_s", 26.0)
        yield HANDOVER

    relay = harness({1: answers}, prefill=frozen_once, clock=clock)
    assert tokens(await relay.run()) == WHOLE
    assert len(relay.prefill.sent) == 2
    ((_, decode, _),) = relay.decode.sent
    assert "prefill_result" in decode
    # Its blocks may be another prompt's by now: never released through a decode worker.
    await relay.settle()
    assert relay.prefill.released == []


async def test_a_hand_over_that_is_too_old_twice_is_left_to_the_decode_worker(harness):
    clock = FrozenClock()

    async def always_late(request, stopped):
        object.__setattr__(clock, "jump_s", clock.jump_s + 26.0)
        yield HANDOVER

    relay = harness({1: answers}, prefill=always_late, clock=clock)
    assert tokens(await relay.run()) == WHOLE
    assert BYPASS_ANNOTATION in relay.decode.sent[0][1]["annotations"]


def test_the_age_limit_is_the_lease_less_its_margin():
    lease = KvLease(30.0, 5.0)
    assert lease.usable(24.9)
    assert not lease.usable(25.0)


async def test_a_client_that_leaves_during_the_prefill_has_it_finish_and_released(harness):
    done = asyncio.Event()
    stops = []

    async def finishes_later(request, stopped):
        await done.wait()
        stops.append(stopped.is_set())
        yield HANDOVER

    relay = harness({1: answers}, prefill=finishes_later)
    context = FakeContext()
    request = asyncio.create_task(relay.run(context))
    await asyncio.sleep(0.01)
    context.stop.set()
    assert await request == []
    done.set()
    await relay.settle()
    assert stops == [False]
    assert relay.prefill.released == [HANDOVER]
    assert relay.decode.sent == []
    assert relay.records()[0]["outcome"] == "cancelled"
    assert relay.records()[0]["reroutes"] == 0
    assert relay.queues.in_flight() == relay.queues.waiting() == 0


@pytest.mark.parametrize("ticks", range(12))
async def test_a_client_that_leaves_between_the_legs_has_the_kv_released(harness, ticks):
    context = FakeContext()

    async def leaves_around_the_answer(request, stopped):
        asyncio.get_running_loop().call_soon(context.stop.set)
        for _ in range(ticks):
            await asyncio.sleep(0)
        yield HANDOVER

    relay = harness({1: waits}, prefill=leaves_around_the_answer)
    assert await relay.run(context) == []
    await asyncio.sleep(0.01)
    # Either the decode leg was sent, which is cancelled then, or the KV is released: never both.
    assert len(relay.prefill.released) + len(relay.decode.sent) == 1


async def test_a_client_that_leaves_during_the_decode_leg_stops_it(harness):
    async def streams_on(request, stopped):
        while not stopped.is_set():
            yield {"token_ids": [5], "index": 0}
            await asyncio.sleep(0.001)

    relay = harness({1: streams_on})
    context = FakeContext()
    request = asyncio.create_task(relay.run(context))
    await asyncio.sleep(0.02)
    context.stop.set()
    assert set(tokens(await request)) == {5}
    assert relay.decode.streams[0].ended
    assert relay.counted("migrations_total") == 0


async def waits_a_little(request, stopped):
    await asyncio.sleep(0.05)
    return
    yield


async def test_random_cancellations_leave_nothing_behind(harness):
    relay = harness({1: answers, 2: waits})
    rng = Random(3)
    for number in range(300):
        relay.prefill.script = rng.choice([waits_a_little, hands_over])
        context = FakeContext(f"r{number}")
        request = asyncio.create_task(relay.run(context, prompt=rng.randrange(1, 3000)))
        for _ in range(rng.randrange(12)):
            await asyncio.sleep(0)
        context.stop.set() if rng.random() < 0.5 else request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
    await asyncio.sleep(0.2)
    assert relay.queues.in_flight() == relay.queues.waiting() == 0
    assert relay.relay.open_streams == 0
    assert all(stream.ended for stream in relay.prefill.streams)
    assert [relay.loads.context_tokens(worker, 0) for worker in (1, 2)] == [0, 0]


async def test_a_decode_worker_that_cannot_get_the_kv_gets_one_more_prefill(harness):
    async def loses_its_kv(request, stopped):
        if "prefill_result" in request and len(relay.decode.sent) == 1:
            yield {"token_ids": [], "index": 0, "finish_reason": "error: KV load failed"}
            return
        async for chunk in answers(request, stopped):
            yield chunk

    relay = harness({1: loses_its_kv})
    assert tokens(await relay.run()) == WHOLE
    assert [worker for worker, _, _ in relay.decode.sent] == [1, 1]


async def test_an_error_that_comes_back_is_the_clients(harness):
    async def refuses(request, stopped):
        yield {"token_ids": [], "index": 0, "finish_reason": "error: no"}

    relay = harness({1: refuses})
    assert (await relay.run())[-1]["finish_reason"] == "error: no"
    assert len(relay.decode.sent) == 2


async def test_a_worker_that_falls_silent_is_given_up_before_the_frontend_gives_us_up(harness):
    async def falls_silent(request, stopped):
        yield {"token_ids": [100], "index": 0}
        await stopped.wait()

    relay = harness({1: falls_silent, 2: answers}, silence_s=0.2)
    relay.loads.book(2, 10_000)
    assert tokens(await relay.run()) == WHOLE


async def test_a_worker_that_never_begins_is_an_error_before_the_time_out(harness):
    relay = harness({1: waits}, silence_s=0.2)
    with pytest.raises(HttpError) as failure:
        await asyncio.wait_for(relay.run(), 0.19 + 0.5)
    assert failure.value.code == 503
    assert len(relay.decode.sent) == 1


async def test_a_prefill_that_hangs_leaves_the_decode_leg_time_to_begin(harness):
    # Its own limits would let it wait for ten seconds.
    relay = harness({1: answers}, prefill=waits, silence_s=0.3)
    assert tokens(await asyncio.wait_for(relay.run(), 5)) == WHOLE
    (_, sent, _), *_ = relay.decode.sent
    assert "prefill_result" not in sent
    assert relay.records()[0]["reason"] == "wait_limit"
