# SPDX-License-Identifier: Apache-2.0
"""Routing loss: never below 1, exact where enumerated; the frozen index is neither."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from controller.estimation.poa import loss as loss_module
from controller.estimation.poa.frozen import frozen_index, regret
from controller.estimation.poa.loss import Goal, routing_loss, window_loss
from controller.estimation.poa.window import PlacementWindow, make_window

pytestmark = pytest.mark.unit


def window(own, chosen, arrival=None, free=None, limit=1.0, **more) -> PlacementWindow:
    own = np.array(own, float)
    count, places = own.shape
    return make_window(
        np.zeros(count) if arrival is None else np.array(arrival, float),
        own,
        np.full(count, limit),
        np.array(chosen),
        np.zeros(places) if free is None else np.array(free, float),
        **more,
    )


def by_hand(w: PlacementWindow, to, goal: Goal) -> float:
    """The law once more, in plain Python."""
    cost, at = 0.0, list(w.free_s)
    for i, j in enumerate(to):
        at[j] = max(at[j], w.arrival_s[i]) + w.own_s[i, j]
        waited = at[j] - w.arrival_s[i]
        late = float(waited > w.limit_s[i])
        cost += waited + w.harm_s[i, j] if goal is Goal.LATENCY else late + w.harm_misses[i, j]
    for each in at:
        left = max(0.0, each - w.end_s)
        if goal is Goal.LATENCY:
            meanwhile = min(left, w.end_s)
            cost += w.rate_per_s * meanwhile * (left - meanwhile / 2)
        else:
            cost += w.rate_per_s * min(w.end_s, max(0.0, left - w.limit_s.mean()))
    return cost


@st.composite
def windows(draw: st.DrawFn) -> PlacementWindow:
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    count, places = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    own = rng.uniform(0.01, 1.0, (count, places))
    arrival = np.sort(rng.uniform(0, 1, count))
    harm = rng.uniform(0, 0.3, (count, places)) * draw(st.booleans())
    return make_window(
        arrival - arrival[0],
        own,
        rng.uniform(0.1, 1.5, count),
        rng.integers(0, places, count),
        rng.uniform(0, 1, places),
        harm_s=harm,
        harm_misses=np.round(harm * 4),
    )


@pytest.mark.parametrize("goal", Goal)
@given(w=windows())
@settings(max_examples=60)
def test_both_costs_are_the_laws_and_the_best_is_the_least_of_all(goal, w):
    found = window_loss(w, goal)
    every = [by_hand(w, to, goal) for to in product(range(w.places), repeat=w.requests)]
    assert found.done == pytest.approx(by_hand(w, w.chosen, goal), abs=1e-9)
    assert found.best == pytest.approx(min(every), abs=1e-9)
    assert found.exact and found.done >= found.best - 1e-9
    assert by_hand(w, found.to, goal) == pytest.approx(found.best, abs=1e-9)


def test_the_search_is_near_what_enumeration_finds(monkeypatch):
    rng = np.random.default_rng(7)
    found = []
    for _ in range(60):
        own = np.repeat(rng.uniform(0.05, 0.4, (6, 1)), 3, axis=1)
        arrival = np.sort(rng.uniform(0, 0.4, 6))
        w = window(own, rng.integers(0, 3, 6), arrival - arrival[0], rng.uniform(0, 0.3, 3))
        exact = window_loss(w, Goal.LATENCY).best
        monkeypatch.setattr(loss_module, "MOST_ENUMERATED", 0)
        found.append(window_loss(w, Goal.LATENCY).best / exact)
        monkeypatch.undo()
    assert min(found) >= 1 - 1e-9
    assert np.mean(found) < 1.02


def test_a_batch_that_comes_at_once_is_positional_matching():
    # Slot k of a place, counted from its end, costs k times the processing time (exact for the sum
    # of completion times); here all arrive at once, in order of length, so arrival order is free.
    rng = np.random.default_rng(3)
    own = np.sort(rng.uniform(0.1, 1.0, 6))[:, None].repeat(2, axis=1)
    w = window(own, [0] * 6, rate_per_s=0.0)
    slots = np.concatenate([own * k for k in range(1, 7)], axis=1)
    rows, columns = linear_sum_assignment(slots)
    assert window_loss(w, Goal.LATENCY).best == pytest.approx(slots[rows, columns].sum())


def test_putting_all_on_one_worker_costs_and_sharing_does_not():
    bad = window([[1.0, 1.0]] * 4, [0, 0, 0, 0], rate_per_s=0.0)
    good = window([[1.0, 1.0]] * 4, [0, 1, 0, 1], rate_per_s=0.0)
    assert routing_loss([bad], Goal.LATENCY).ratio == pytest.approx(10 / 6)
    assert routing_loss([good], Goal.LATENCY).ratio == pytest.approx(1.0)
    assert routing_loss([bad], Goal.MISSES).ratio == pytest.approx(3 / 2)


def test_what_is_left_at_the_end_is_not_forgiven():
    # Alone, either place serves both in the same time; left behind it delays who comes next.
    w = window([[1.0, 1.0], [1.0, 3.0]], [0, 1], end_s=1.0, rate_per_s=2.0)
    forgiven = window([[1.0, 1.0], [1.0, 3.0]], [0, 1], end_s=9.0, rate_per_s=2.0)
    assert window_loss(w, Goal.LATENCY).done > window_loss(forgiven, Goal.LATENCY).done


def test_a_local_prefills_harm_to_others_is_part_of_the_price():
    free_riding = window([[1.0, 0.5]], [1], harm_s=np.array([[0.0, 2.0]]), rate_per_s=0.0)
    assert window_loss(free_riding, Goal.LATENCY).done == pytest.approx(2.5)
    assert window_loss(free_riding, Goal.LATENCY).best == pytest.approx(1.0)


def test_the_interval_covers_the_ratio_and_needs_enough_windows():
    rng = np.random.default_rng(5)
    many = [window(rng.uniform(0.1, 1, (3, 2)), rng.integers(0, 2, 3)) for _ in range(40)]
    found = routing_loss(many, Goal.LATENCY)
    assert found.windows == 40 and found.exact_share == 1.0
    assert 1.0 <= found.low <= found.ratio <= found.high
    few = routing_loss(many[:3], Goal.LATENCY)
    assert few.low is None and few.ratio is not None
    assert routing_loss([], Goal.LATENCY).ratio is None


def test_nothing_lost_where_there_is_nothing_to_lose():
    assert routing_loss([window([[0.1, 0.1]], [0])], Goal.MISSES).ratio == 1.0


def test_the_frozen_index_can_be_below_one_and_regret_cannot():
    # A perfect matching must use both engines; the router used the fast one twice.
    greedy = window([[1.0, 9.0], [1.0, 9.0]], [0, 0])
    found = frozen_index([greedy])
    assert found.ratio_of_sums == pytest.approx(2 / 10)
    assert found.regret_p50 == 1.0 and (regret(greedy) >= 1).all()
    assert frozen_index([]).ratio_of_sums is None


@pytest.mark.parametrize(
    ("own", "chosen"), [([[1.0]], [0, 0]), ([[np.inf, 1.0]], [0]), (np.zeros((0, 2)), [])]
)
def test_a_window_that_cannot_be_is_refused(own, chosen):
    with pytest.raises(ValueError):
        window(own, chosen)
