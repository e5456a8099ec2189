# SPDX-License-Identifier: Apache-2.0
"""The hand-over between a prefill and a decode worker: the same contract on every engine.

Direct legs show what the engine does; the router in the test process shows what we make of it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from conformance_checks import cancel_at_random, cancelled_as_answered, local_prefill_cancelled
from conformance_http import CASES, Answer, ask_all, exact, joined
from conformance_live import Live, make_request, tokens_of
from conformance_router import Freeze, Router
from dynamo.runtime import Context

from controller.runtime.router.handover import KvLease, decode_request

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_local_and_remote_prefill_give_the_same_tokens(live: Live) -> None:
    for _ in range(3):
        request = make_request(live.prompt())
        remote = await live.remote(request)
        assert len(remote) == 8
        assert remote == await live.cold(request)
    assert await live.engine_is_free()


async def test_another_prompts_kv_gives_other_tokens(live: Live) -> None:
    """The negative control: without it "the same tokens" would prove nothing."""
    for _ in range(3):
        request, other = make_request(live.prompt()), make_request(live.prompt())
        answer = (await live.prefill_leg(other))[0]
        wrong = tokens_of(await live.decode_leg(decode_request(request, answer)))
        assert len(wrong) == 8
        assert wrong != await live.cold(request)
    assert await live.engine_is_free()


async def test_later_rounds_give_the_tokens_of_a_cold_prompt(live: Live) -> None:
    first = live.prompt()
    answer = await live.remote(make_request(first))
    second = make_request([*first, *answer, *live.prompt(50)])
    handed = (await live.prefill_leg(second))[0]
    # The prefill worker did compute only what is new.
    cached = handed["completion_usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= len(first) - live.block_size
    warm = tokens_of(await live.decode_leg(decode_request(second, handed)))
    assert warm == await live.cold(second)
    assert await live.engine_is_free()


async def test_a_decode_leg_after_the_lease_is_silently_wrong(live: Live) -> None:
    """What the age rule is for: no error, a regular end, another prompt's content."""
    request = make_request(live.prompt())
    answer, answered_s = (await live.prefill_leg(request))[0], time.monotonic()
    await asyncio.sleep(live.kind.lease_s + 0.5)
    assert await live.accepts_its_whole_capacity_at_once()
    lease = KvLease(live.kind.lease_s, live.kind.lease_s / 5)
    assert lease.usable(0.0)
    assert not lease.usable(time.monotonic() - answered_s)
    late = await live.decode_leg(decode_request(request, answer))
    assert len(tokens_of(late)) == 8
    assert tokens_of(late) != await live.cold(request)


async def test_a_router_that_was_frozen_past_the_lease_prefills_again(live: Live) -> None:
    router = Router(live)
    router.port.on_answer = Freeze(live)
    request = make_request(live.prompt())
    tokens = tokens_of(await router.serve(request, Context()))
    assert len(router.port.sent) == 2
    assert tokens == await live.cold(request)
    assert await live.engine_is_free()


async def test_a_prefill_cancelled_in_the_queue_is_never_sent(live: Live) -> None:
    for serve in ("prefill", "serve"):
        router = Router(live, max_num_batched_tokens=64)
        running = make_request(live.prompt(live.kind.long_prompt_tokens))
        waiting = make_request(live.prompt())
        first = asyncio.create_task(router.serve(running, Context()))
        while not router.port.sent:
            await asyncio.sleep(0.01)
        context = Context()
        second = asyncio.create_task(getattr(router, serve)(waiting, context))
        await asyncio.sleep(0.02)
        await _leave(second, context, serve)
        assert len(tokens_of(await first)) == 8
        assert len(router.port.sent) == 1
        assert await live.engine_is_free()


@pytest.mark.parametrize("serve", ["prefill", "serve"])
async def test_a_prefill_cancelled_while_it_runs_leaves_nothing_pinned(
    live: Live, serve: str
) -> None:
    # Sent at once: what was left still holds its place in the in-flight bound.
    router = Router(live, max_num_batched_tokens=100_000)
    for share in (0.2, 1.0, 2.0):
        context = Context()
        request = make_request(live.prompt(live.kind.long_prompt_tokens))
        task = asyncio.create_task(getattr(router, serve)(request, context))
        await asyncio.sleep(share * live.kind.during_s)
        await _leave(task, context, serve)
    assert len(router.port.sent) == 3
    assert await live.engine_is_free()


@pytest.mark.parametrize("serve", ["prefill", "serve"])
async def test_a_prefill_cancelled_as_it_is_answered_is_released(live: Live, serve: str) -> None:
    router = Router(live)
    for _ in range(3):
        await cancelled_as_answered(live, router, serve)
    assert await live.engine_is_free()
    assert len(router.port.released) == 3


async def test_a_stream_cancelled_while_it_decodes_leaves_nothing_pinned(live: Live) -> None:
    router = Router(live)
    for tokens in (1, 2, 5):
        context, heard = Context(), []
        request = make_request(live.prompt(), max_tokens=200)
        async for chunk in router.relay.serve(request, context):
            heard += chunk["token_ids"]
            if len(heard) >= tokens:
                context.stop_generating()
        assert len(heard) < 200
    assert await live.engine_is_free()


async def test_a_cancelled_local_prefill_gives_the_decode_worker_back(live: Live) -> None:
    times = [await local_prefill_cancelled(live) for _ in range(3 if live.kind.real else 1)]
    assert min(after_s / whole_s for whole_s, after_s in times) < 0.6, times


async def test_several_sequences_go_local_and_pin_nothing(live: Live) -> None:
    router = Router(live)
    request = make_request(live.prompt())
    # The likeliest token each time, but not "greedy": vLLM refuses n > 1 for that.
    request["sampling_options"] = {"temperature": 1.0, "top_k": 1, "n": 2}
    chunks = await router.serve(request, Context())
    assert [len(tokens_of(chunks, index)) for index in (0, 1)] == [8, 8]
    assert not router.port.sent
    assert await live.engine_is_free()
    one = make_request(request["token_ids"])
    assert tokens_of(chunks, 0) == await live.cold(one)


@pytest.mark.parametrize("attachment", ["broker", "relay"])
async def test_http_answers_are_those_of_stock(
    live: Live, relay_url: str, stock_answers: dict[str, Answer], attachment: str
) -> None:
    url = live.url if attachment == "broker" else relay_url
    # Usage counts cached tokens: both caches are as cold as they were for stock.
    await live.fill_prefill_worker()
    await live.forget_decode_cache()
    answers = await ask_all(url, live.kind.timeout_s)
    # A busy real engine puts as many tokens into a chunk as wait: compare what they add up to.
    made_equal = joined if live.kind.real else exact
    different = {
        name: (answers[name], stock_answers[name])
        for name in CASES
        if made_equal(answers[name]) != made_equal(stock_answers[name])
    }
    assert different == {}
    assert await live.engine_is_free()


async def test_random_cancellations_leave_the_whole_capacity_free(live: Live) -> None:
    router = Router(live)
    ended = await cancel_at_random(live, router, live.kind.cancellations)
    assert ended["error"] == 0
    assert ended["cancelled"] > 0.5 * live.kind.cancellations
    assert len(router.port.sent) > 0.2 * live.kind.cancellations
    assert await live.engine_is_free()
    assert await live.accepts_its_whole_capacity_at_once()


async def _leave(task: asyncio.Task[Any], context: Any, serve: str) -> None:
    """The client goes: a relay learns of it by the context, a broker's core by cancellation."""
    if serve == "serve":
        context.stop_generating()
    else:
        task.cancel()
    await asyncio.wait({task})
    assert task.cancelled() or tokens_of(task.result()) == []
