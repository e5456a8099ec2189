# SPDX-License-Identifier: Apache-2.0
"""`batch` at the live queues: what waits in doubt chooses again."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.inflight import InFlightBound
from controller.runtime.router.queues import PrefillQueues, QueueOptions
from controller.runtime.router.tickets import Again, GoesLocalError

pytestmark = pytest.mark.unit


def queues(workers=(1, 2), revise=True):
    options = QueueOptions(revise=revise, late_binding=False)
    made = PrefillQueues(InFlightBound(1000, 1), 10, options=options)
    made.sync(workers)
    return made


def joined(pool, worker, now_s, again, due_s=0.5):
    """A prefill of 1,000 tokens and 1 s."""
    return pool.enqueue(worker, 1000, 1.0, now_s, due_s=due_s, again=again)


def to(worker, due_s=9.0):
    return lambda: Again(worker, 1000, 1.0, due_s)


async def test_a_prefill_in_doubt_may_become_a_local_one():
    pool = queues()
    running = joined(pool, 1, 0.0, to(1))
    waiting = joined(pool, 1, 0.0, lambda: None)
    pool.release(running, 0.4)
    # Its place was free by then: it was granted before anybody was asked.
    assert waiting.granted.done() and waiting.granted.exception() is None
    doubtful = joined(pool, 1, 0.5, lambda: None)
    joined(pool, 2, 0.6, to(2))  # any arrival asks
    assert (pool.waiting(), pool.in_flight()) == (0, 2)
    with pytest.raises(GoesLocalError):
        await doubtful.granted
    pool.release(doubtful, 0.6)
    assert (pool.waiting(), pool.in_flight()) == (0, 2)


async def test_a_prefill_in_doubt_may_move_and_is_sent_where_there_is_room():
    pool = queues(workers=(1, 2, 3))
    first = joined(pool, 1, 0.0, to(1))
    moving = joined(pool, 1, 0.0, to(2))
    last = joined(pool, 3, 0.1, to(3))
    assert moving.worker_id == 2 and moving.moved == 1
    await moving.granted
    assert first.moved == last.moved == 0


async def test_who_is_in_time_or_cannot_say_stays():
    pool = queues()
    joined(pool, 1, 0.0, to(1))
    in_time = joined(pool, 1, 0.0, lambda: None, due_s=9.0)
    silent = joined(pool, 1, 0.0, None)
    joined(pool, 2, 0.1, to(2))
    assert (in_time.worker_id, silent.worker_id) == (1, 1)
    assert not in_time.granted.done() and not silent.granted.done()


async def test_one_that_fails_to_say_harms_nobody():
    pool = queues()

    def broken():
        raise RuntimeError("no view")

    running = joined(pool, 1, 0.0, to(1))
    waiting = joined(pool, 1, 0.0, broken)
    other = joined(pool, 2, 0.1, to(2))
    await other.granted
    pool.release(running, 0.2)
    await waiting.granted


async def test_a_worker_that_is_not_there_is_no_place_to_go():
    pool = queues()
    joined(pool, 1, 0.0, to(1))
    waiting = joined(pool, 1, 0.0, to(77))
    joined(pool, 2, 0.1, to(2))
    assert waiting.worker_id == 1


async def test_other_rules_ask_nobody():
    pool = queues(revise=False)
    joined(pool, 1, 0.0, to(1))
    waiting = joined(pool, 1, 0.0, to(2))
    joined(pool, 2, 0.1, to(2))
    assert waiting.worker_id == 1 and not waiting.granted.done()


@given(
    choices=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([None, 1, 2, 3, 77]), st.floats(0, 3)),
        max_size=20,
    )
)
def test_every_prefill_is_granted_once_or_goes_local_and_nothing_is_left(choices):
    async def run():
        pool = queues(workers=(1, 2, 3))
        open_, now_s, told = [], 0.0, 0
        for worker, wish, due_s in choices:
            now_s += 0.1
            again = (lambda: None) if wish is None else to(wish, due_s)
            open_.append(joined(pool, worker, now_s, again, due_s))
            assert pool.in_flight() <= 3
        while open_:
            now_s += 0.1
            done = [ticket for ticket in open_ if ticket.granted.done()]
            assert done, "nobody may be sent, and somebody waits"
            told += len(done)
            for ticket in done:
                open_.remove(ticket)
                ticket.granted.exception()
                pool.release(ticket, now_s)
        assert told == len(choices) and pool.waiting() == pool.in_flight() == 0

    asyncio.run(run())
