# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.inflight import InFlightBound
from controller.routing.kernels.orderings import ORDERINGS, Ordering
from controller.runtime.router.queues import (
    PrefillQueues,
    QueueOptions,
    TooLateError,
    WorkerGoneError,
)
from controller.types import PrefillTask

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


def ordered(rule, reject=False, **settings):
    made = PrefillQueues(
        InFlightBound(1000, 1), 10, Ordering(ORDERINGS[rule], **settings), QueueOptions(reject)
    )
    made.sync([1])
    return made


def served(pool, blocker, tickets, now_s):
    """Names in the order in which they are granted, one after another."""
    order, running = [], blocker
    for _ in tickets:
        pool.release(running, now_s)
        name = next(n for n, t in tickets.items() if t.granted.done() and n not in order)
        order.append(name)
        running = tickets[name]
    return order


async def test_the_hopeless_let_others_pass():
    # At 1.0 s: a is due at 1.5 and takes 1.0: hopeless. b and c can be in time.
    pool = ordered("hopeless_last")
    blocker = pool.enqueue(1, 1000, 1.0, 0.0)
    tickets = {
        name: pool.enqueue(1, 1000, 1.0, 0.0, due_s=due_s)
        for name, due_s in (("a", 1.5), ("b", 9.0), ("c", 9.0))
    }
    assert served(pool, blocker, tickets, 1.0) == ["b", "c", "a"]


async def test_algorithm_2_sends_the_permutation_with_most_in_time():
    # a takes 1.0 s due 9.0, b 0.5 due 1.6: at 1.0 only b before a has both in time.
    pool = ordered("algorithm_2")
    blocker = pool.enqueue(1, 1000, 1.0, 0.0)
    tickets = {
        "a": pool.enqueue(1, 1000, 1.0, 0.0, due_s=9.0),
        "b": pool.enqueue(1, 1000, 0.5, 0.0, due_s=1.6),
    }
    assert served(pool, blocker, tickets, 1.0) == ["b", "a"]


async def test_strict_priority_comes_first_and_a_jump_within_a_tier():
    # In a first-come order `jumps` counts as having come 2 s earlier: before a (0.1), not before
    # the strict one.
    pool = ordered("fifo")
    blocker = pool.enqueue(1, 1000, 1.0, 0.0)
    tickets = {
        "a": pool.enqueue(1, 1000, 1.0, 0.1),
        "demoted": pool.enqueue(1, 1000, 1.0, 0.2, jump_s=-2.0),
        "b": pool.enqueue(1, 1000, 1.0, 0.3),
        "jumps": pool.enqueue(1, 1000, 1.0, 0.4, jump_s=2.0),
        "strict": pool.enqueue(1, 1000, 1.0, 0.5, urgency=1),
    }
    assert served(pool, blocker, tickets, 1.0) == ["strict", "jumps", "a", "b", "demoted"]


async def test_what_has_waited_too_long_goes_first():
    pool = ordered("shortest", max_wait_s=1.0)
    blocker = pool.enqueue(1, 1000, 1.0, 0.0)
    tickets = {
        "long": pool.enqueue(1, 1000, 1.0, 0.1),
        "short": pool.enqueue(1, 1000, 0.2, 0.2),
        "last": pool.enqueue(1, 1000, 0.3, 1.0),
    }
    assert served(pool, blocker, tickets, 1.15) == ["long", "short", "last"]


async def test_early_rejection_refuses_what_cannot_be_in_time():
    pool = ordered("hopeless_last", reject=True)
    blocker = pool.enqueue(1, 1000, 1.0, 0.0)
    late = pool.enqueue(1, 1000, 1.0, 0.0, due_s=1.5)
    fine = pool.enqueue(1, 1000, 1.0, 0.0, due_s=9.0)
    pool.release(blocker, 1.0)
    assert fine.granted.done() and late.granted.done()
    with pytest.raises(TooLateError):
        await late.granted
    pool.release(late, 1.0)
    pool.release(fine, 2.0)
    assert pool.waiting() == pool.in_flight() == 0


async def test_a_waiter_that_was_cancelled_leaves_its_lane_and_holds_nobody_up():
    # wait_for cancels the future before the ticket is released: the queue may look in between.
    pool = ordered("fifo")
    blocker = pool.enqueue(1, 1000, 1.0, 0.0)
    gone = pool.enqueue(1, 1000, 1.0, 0.0)
    last = pool.enqueue(1, 1000, 1.0, 0.0)
    gone.granted.cancel()
    pool.release(blocker, 1.0)
    assert last.granted.done() and not last.granted.cancelled()
    pool.release(gone, 1.0)
    pool.release(last, 1.0)
    assert pool.waiting() == pool.in_flight() == 0


async def test_a_view_tells_the_work_and_what_one_more_would_cost():
    pool = ordered("fifo")
    pool.enqueue(1, 1000, 1.0, 0.0)
    pool.enqueue(1, 400, 0.5, 0.0, due_s=1.6)
    view = pool.view((1,), {1: 64, 7: 99}, 0.2)
    assert view.queue_s == pytest.approx([0.8 + 0.5])
    assert (view.tokens.tolist(), view.cached_tokens.tolist()) == ([1400], [64])
    # It joins behind: 0.2 + 0.8 + 0.5 + 0.4 = 1.9 s, too late for 1.8; nobody else is harmed.
    one_more = PrefillTask("r", 0.2, 0, 400)
    misses, end_s = view.forecast(one_more, np.array([0.4]), 1.8, 0.0)
    assert (misses.tolist(), end_s) == ([1.0], pytest.approx([1.9]))


STEP = st.tuples(
    st.lists(st.integers(1, 4), unique=True, max_size=4),  # who is live
    st.lists(st.integers(1, 4), unique=True, max_size=4),  # whom the rule may use, if live
    st.integers(1, 4),  # whose TTFT is recorded
)


@given(st.lists(STEP, min_size=1, max_size=12))
def test_a_view_is_of_just_the_workers_asked_for_however_the_live_set_changes(steps):
    # An empty pool after a full one once kept the rows of the workers that had left.
    pool = PrefillQueues(InFlightBound(1000), window_s=10)
    ttft_s: dict[int, tuple[float, float]] = {}
    for i, (live, usable, recorded) in enumerate(steps):
        now_s = 4.0 * i
        pool.sync(live)
        ttft_s = {w: sample for w, sample in ttft_s.items() if w in live}
        if recorded in live:
            pool.record_ttft(recorded, now_s, float(recorded))
            ttft_s[recorded] = now_s, float(recorded)
        ids = tuple(w for w in usable if w in live)
        seen = pool.view(ids, dict.fromkeys(live, 7), now_s)
        assert seen.worker_ids == ids
        assert list(seen.cached_tokens) == [7] * len(ids)
        assert len(seen.queue_s) == len(seen.tokens) == len(ids)
        for worker_id, window_s in zip(ids, seen.ttft_window_s, strict=True):
            at_s, value = ttft_s.get(worker_id, (-math.inf, 0.0))
            assert window_s == value if at_s > now_s - 10 else math.isnan(window_s)
