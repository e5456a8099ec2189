# SPDX-License-Identifier: Apache-2.0
"""Queues that never starve an engine: late binding, the learnt bound, shares, swept leases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.fairness import FairShare
from controller.routing.inflight import InFlightBound
from controller.routing.units import rank_of, siblings, unit, worker_of
from controller.runtime.router.queues import PrefillQueues, QueueOptions

pytestmark = pytest.mark.unit


def queues(workers=(1, 2), tokens=1000, steps=1, **options):
    made = PrefillQueues(InFlightBound(tokens, steps), 10, options=QueueOptions(**options))
    made.sync(workers)
    return made


def joined(pool, worker, tokens, now_s=0.0, cached=None, **more):
    """A prefill of `tokens` that would have `cached[w]` of them at another worker."""

    def terms(other):
        left = tokens - (cached or {}).get(other, 0)
        return left, left / 1000

    uncached, predicted_s = terms(worker)
    return pool.enqueue(worker, uncached, predicted_s, now_s, terms=terms, **more)


async def test_a_worker_that_becomes_free_takes_what_waits_elsewhere():
    pool = queues()
    busy, free = joined(pool, 1, 1000), joined(pool, 2, 1000)
    waiting = joined(pool, 1, 800)
    pool.release(free, 0.5)
    assert waiting.granted.done() and waiting.worker_id == 2 and waiting.moved == 1
    assert pool.predicted_s(1, 0.5) == pytest.approx(0.5)
    assert pool.predicted_s(2, 0.5) == pytest.approx(0.8)
    pool.release(waiting, 1.0)
    pool.release(busy, 1.0)
    assert pool.waiting() == pool.in_flight() == 0


async def test_a_new_worker_takes_what_waits():
    pool = queues(workers=[1])
    joined(pool, 1, 1000)
    waiting = joined(pool, 1, 1000)
    pool.sync([1, 5], 0.1)
    assert waiting.worker_id == 5 and waiting.granted.done()


async def test_nothing_moves_to_where_it_would_end_later():
    pool = queues()
    joined(pool, 1, 300)
    other = joined(pool, 2, 1000)
    waiting = joined(pool, 1, 900, cached={1: 100})  # would end at 1.1 s, elsewhere at 0.2 + 0.9
    kept = joined(pool, 1, 2000, cached={1: 1900})
    pool.release(other, 0.1)
    assert (waiting.worker_id, kept.worker_id) == (2, 1)


async def test_what_may_not_move_stays():
    pool = queues()
    joined(pool, 1, 1000)
    free = joined(pool, 2, 1000)
    bound_by_adapter = joined(pool, 1, 800, only=frozenset({1}))
    pool.release(free, 0.1)
    assert bound_by_adapter.worker_id == 1 and not bound_by_adapter.granted.done()


async def test_late_binding_can_be_switched_off():
    pool = queues(late_binding=False)
    joined(pool, 1, 1000)
    free = joined(pool, 2, 1000)
    waiting = joined(pool, 1, 800)
    pool.release(free, 0.1)
    assert waiting.worker_id == 1 and waiting.moved == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 3000), st.booleans(), st.booleans()),
        max_size=60,
    )
)
def test_no_engine_is_idle_while_work_is_held_back_that_it_could_do(steps):
    import asyncio

    async def scenario():
        pool, held, now = queues(workers=(1, 2, 3)), [], 0.0
        for worker, tokens, release, only in steps:
            now += 0.05
            if release and held:
                pool.release(held.pop(tokens % len(held)), now)
            else:
                who = frozenset({1 + worker}) if only else None
                held.append(joined(pool, 1 + worker, tokens, now, only=who))
            rows = {w: [t for t in held if t.worker_id == w] for w in (1, 2, 3)}
            for here in rows.values():
                flying = [t for t in here if t.granted.done()]
                assert sum(t.uncached_tokens for t in flying) <= 1000 or len(flying) == 1
                assert flying or not here
        for ticket in held:
            pool.release(ticket, now)
        assert pool.waiting() == pool.in_flight() == 0

    asyncio.run(scenario())


async def test_a_short_step_while_work_is_held_raises_the_bound_and_sends():
    pool = queues(workers=[1], tokens=1000, steps=2)
    joined(pool, 1, 1500)
    held = joined(pool, 1, 900)
    assert not held.granted.done()
    pool.stepped(1, 400, 0, 0.1)
    assert held.granted.done()


@given(
    st.lists(st.tuples(st.integers(0, 2048), st.integers(0, 9999), st.integers(0, 9999))),
    st.integers(2, 4096),
)
def test_the_learnt_bound_stays_between_its_limits(steps, budget):
    bound = InFlightBound(budget)
    tokens = bound.tokens
    for step, waiting, held in steps:
        after = bound.adapted(tokens, min(step, budget), waiting, held)
        assert 2 * budget <= after <= 8 * budget
        if held == 0:
            assert after <= tokens
        tokens = after


async def test_a_lease_that_nobody_released_is_swept_and_counted():
    pool = queues(workers=[1])
    leaked, waiting = joined(pool, 1, 1000), joined(pool, 1, 1000, now_s=5.0)
    assert pool.sweep(9.0, 10.0) == 0
    assert pool.sweep(11.0, 10.0) == 1
    assert leaked.granted.done() and waiting.granted.done()
    assert pool.in_flight() == 1


async def test_a_tenant_that_floods_a_queue_does_not_delay_another_one():
    pool = queues(workers=[1], weights={"calm": 1.0, "flood": 1.0})
    running = joined(pool, 1, 1000, tenant="flood")
    flood = [joined(pool, 1, 1000, tenant="flood") for _ in range(10)]
    calm = joined(pool, 1, 1000, tenant="calm")
    order, tickets = [], {**{f"f{k}": t for k, t in enumerate(flood)}, "calm": calm}
    while len(order) < 3:
        pool.release(running, 1.0)
        name = next(n for n, t in tickets.items() if t.granted.done() and n not in order)
        order.append(name)
        running = tickets[name]
    assert order == ["calm", "f0", "f1"]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0.1, 3)), min_size=1, max_size=80))
def test_backlogged_tenants_get_their_shares_to_within_a_prefill(work):
    shares = FairShare({"a": 2.0, "b": 1.0})
    tags = sorted((shares.tag_s(name, s), k, name, s) for k, (name, s) in enumerate(work))
    served, left = {"a": 0.0, "b": 0.0}, {n: sum(s for m, s in work if m == n) for n in "ab"}
    for _, _, name, seconds in tags:
        served[name] += seconds
        left[name] -= seconds
        if min(left.values()) > 1e-9:  # both still have work waiting
            assert abs(served["a"] / 2 - served["b"]) <= 3 / 2 + 3 + 1e-9


def test_a_rank_is_a_candidate_of_its_own_and_rank_0_the_worker():
    worker = 0xFFFF_FFFF_FFFF_FFF1
    units = [unit(worker, rank) for rank in range(3)]
    assert units[0] == worker and len(set(units)) == 3
    assert [(worker_of(u), rank_of(u)) for u in units] == [(worker, 0), (worker, 1), (worker, 2)]
    assert siblings(units[1], [*units, 5]) == units
