# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.inflight import InFlightBound
from controller.runtime.router.queues import PrefillQueues, WorkerGoneError

pytestmark = pytest.mark.unit


def queues(tokens=1000, steps=2):
    made = PrefillQueues(InFlightBound(tokens, steps), window_s=10)
    made.sync([1, 2])
    return made


async def test_grants_follow_arrival_and_the_token_bound():
    pool = queues()
    first = pool.enqueue(1, 1500, 1.5, 0.0)
    second = pool.enqueue(1, 600, 0.6, 0.0)
    third = pool.enqueue(1, 100, 0.1, 0.0)  # would fit, but must not overtake
    assert [t.granted.done() for t in (first, second, third)] == [True, False, False]
    pool.release(first, 1.5)
    assert second.granted.done() and third.granted.done()


async def test_an_idle_worker_takes_a_prompt_larger_than_the_bound():
    pool = queues()
    assert pool.enqueue(1, 50_000, 50.0, 0.0).granted.done()


async def test_predicted_work_counts_down_while_a_prefill_runs():
    pool = queues()
    pool.enqueue(1, 1500, 1.5, 0.0)
    pool.enqueue(1, 1000, 1.0, 0.0)
    assert pool.predicted_s(1, 0.0) == pytest.approx(2.5)
    assert pool.predicted_s(1, 1.0) == pytest.approx(1.5)
    assert pool.predicted_s(1, 9.0) == pytest.approx(1.0)  # late, never negative
    assert pool.predicted_s(2, 0.0) == 0.0


async def test_waiters_of_a_worker_that_left_are_told():
    pool = queues()
    running = pool.enqueue(1, 1500, 1.5, 0.0)
    waiting = pool.enqueue(1, 1500, 1.5, 0.0)
    pool.sync([2])
    with pytest.raises(WorkerGoneError):
        await waiting.granted
    pool.release(running, 1.0)
    pool.release(waiting, 1.0)
    with pytest.raises(WorkerGoneError):
        pool.enqueue(1, 1, 0.1, 1.0)


async def test_a_stuck_worker_has_no_slack_although_its_window_is_empty():
    pool = queues()
    assert math.isnan(pool.ttft_window_s(1, 0.0))
    pool.enqueue(1, 100, 0.1, 0.0)
    assert pool.ttft_window_s(1, 25.0) == 25.0


async def test_released_while_waiting_never_gets_a_grant():
    pool = queues()
    first = pool.enqueue(1, 2000, 2.0, 0.0)
    gone = pool.enqueue(1, 2000, 2.0, 0.0)
    last = pool.enqueue(1, 2000, 2.0, 0.0)
    pool.release(gone, 0.5)
    pool.release(first, 2.0)
    assert gone.granted.cancelled()
    assert last.granted.done() and not last.granted.cancelled()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3000), st.booleans()), max_size=60))
def test_nothing_leaks_and_the_bound_holds(steps):
    import asyncio

    async def scenario():
        pool, held, now = queues(), [], 0.0
        for worker, tokens, release in steps:
            now += 0.1
            if release and held:
                pool.release(held.pop(tokens % len(held)), now)
            else:
                held.append(pool.enqueue(1 + worker, tokens, tokens / 1000, now))
            for worker_id in (1, 2):
                running = [t for t in held if t.worker_id == worker_id and t.granted.done()]
                total = sum(t.uncached_tokens for t in running)
                assert total <= 2000 or len(running) == 1
                waiting = [t for t in held if t.worker_id == worker_id and not t.granted.done()]
                assert running or not waiting  # work held back means the worker is busy
        for ticket in held:
            pool.release(ticket, now)
        assert pool.waiting() == pool.in_flight() == 0
        assert pool.predicted_s(1, now) == pool.predicted_s(2, now) == 0.0

    asyncio.run(scenario())
