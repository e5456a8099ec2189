# SPDX-License-Identifier: Apache-2.0
"""Prefill deflection on a view, worked by hand.

Unit costs: 10 ms a step, 1 ms a prompt token, 1 ms a running decode. ITL limit 200 ms: with
beta = 0.9 a step may take 180 ms. TTFT limit 1 s, alpha 1.3.
"""

import pytest

from controller.routing.deflection import Deflect
from controller.types import DecisionReason, Place, RoutingParams, Slo

pytestmark = pytest.mark.unit


@pytest.fixture
def rule(unit_costs):
    return Deflect(unit_costs, Slo(ttft_ms=1000, itl_ms=200), RoutingParams())


def test_a_busy_prefill_worker_deflects_to_safe_chunks(rule, task, view):
    # 2,000 tokens ahead: the prefill path takes 2000/300 steps of 0.31 s and its own 0.31 s.
    # Local chunks: 256 (266 ms) is too long, 128 fits (138 ms): three steps of 128, 128, 44 tokens,
    # 0.138 + 0.138 + 0.054 s = 0.33 s.
    decision = rule.place(task(increment=300), view(ttft=[0.0], tokens=[2000], itl=[0.0], bound=0))
    assert (decision.place, decision.reason) == (Place.LOCAL, DecisionReason.DEFLECTED)
    assert decision.chunks == (128, 128, 128)
    named = dict(decision.estimates_s)
    assert named["local"] == pytest.approx(0.33)
    assert named["100"] == pytest.approx(2000 / 300 * 0.31 + 0.31)


def test_a_faster_prefill_worker_keeps_it(rule, task, view):
    # Idle: 0.31 s by way of the prefill worker against 0.33 s local: below 1.3 times, deflected;
    # with a decode batch of 40 the steps take 40 ms more, 0.45 s: above 1.3 * 0.31 = 0.403 s.
    idle = {"ttft": [0.0], "itl": [0.0], "bound": 0}
    assert rule.place(task(increment=300), view(**idle)).place is Place.LOCAL
    kept = rule.place(task(increment=300), view(**idle, batch=[40]))
    assert (kept.worker_id, kept.reason) == (100, DecisionReason.NOT_DEFLECTED)


def test_one_deflected_prefill_a_decode_worker(rule, task, view):
    busy = {"ttft": [0.0], "tokens": [2000], "itl": [0.0, 0.0], "local_prefills": [1, 0]}
    assert rule.place(task(increment=300), view(**busy, bound=0)).place is Place.REMOTE
    fresh = rule.place(task(increment=300), view(**busy, bound=0, fresh=True))
    assert (fresh.place, fresh.decode_id) == (Place.LOCAL, 201)


def test_the_least_loaded_prefill_worker_is_the_other_way(rule, task, view):
    state = view(ttft=[0.0, 0.0], tokens=[2000, 100])
    assert rule.place(task(increment=300), state).worker_id == 101


def test_no_schedule_for_engines_that_do_not_follow_one(rule, task, view):
    state = view(ttft=[0.0], tokens=[2000], itl=[0.0], bound=0, chunked=[0])
    decision = rule.place(task(increment=300), state)
    assert (decision.place, decision.chunks) == (Place.LOCAL, ())
