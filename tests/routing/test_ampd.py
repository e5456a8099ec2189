# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 and Eq. 1-2 of AMPD, worked by hand."""

from random import Random

import pytest

from controller.routing.ampd import Ampd
from controller.routing.estimates import local_estimate_s, remote_estimates_s
from controller.types import DecisionReason, Place, RoutingParams, Slo

pytestmark = pytest.mark.unit

SLO = Slo(ttft_ms=1000, itl_ms=50)  # slack: TTFT <= 0.9 s, ITL <= 0.0425 s
NAN = float("nan")


@pytest.fixture
def rule(unit_costs):
    return Ampd(unit_costs, SLO, RoutingParams(), Random(0))


def test_a_prefill_worker_with_slack_wins_even_if_the_decode_worker_has_slack(rule, task, view):
    decision = rule.place(task(), view(ttft=[0.95, 0.90], itl=[0.001], bound=0))
    assert (decision.place, decision.worker_id) == (Place.REMOTE, 101)
    assert decision.reason is DecisionReason.PREFILL_SLACK


def test_the_itl_test_lies_outside_the_loop(rule, task, view):
    # Worker 100 has no slack, 101 has. A rule that tested the ITL inside the loop would go
    # local whenever the shuffle visits 100 first.
    places = {
        rule.place(task(), view(ttft=[5.0, 0.1], itl=[0.001], bound=0)).worker_id for _ in range(50)
    }
    assert places == {101}


def test_the_scan_order_is_random_and_seeded(unit_costs, task, view):
    def visits(seed):
        rule = Ampd(unit_costs, SLO, RoutingParams(), Random(seed))
        return [rule.place(task(), view(ttft=[0.1, 0.1, 0.1])).worker_id for _ in range(60)]

    assert set(visits(1)) == {100, 101, 102}
    assert visits(1) == visits(1)
    assert visits(1) != visits(2)


def test_an_empty_window_is_slack(rule, task, view):
    decision = rule.place(task(), view(ttft=[5.0, NAN], itl=[0.001], bound=0))
    assert (decision.reason, decision.worker_id) == (DecisionReason.PREFILL_SLACK, 101)


def test_local_only_after_all_prefill_workers_failed_and_the_itl_leaves_slack(rule, task, view):
    decision = rule.place(task(), view(ttft=[0.91, 2.0], itl=[0.06, 0.0425], bound=1))
    assert (decision.place, decision.reason) == (Place.LOCAL, DecisionReason.DECODE_SLACK)


@pytest.mark.parametrize(
    ("slack_ttft", "slack_itl", "expected"),
    [
        (0.900, 9.9, DecisionReason.PREFILL_SLACK),  # exactly at alpha * limit
        (0.901, 0.0425, DecisionReason.DECODE_SLACK),  # exactly at beta * limit
    ],
)
def test_limits_are_inclusive(rule, task, view, slack_ttft, slack_itl, expected):
    decision = rule.place(task(), view(ttft=[slack_ttft], itl=[slack_itl], bound=0))
    assert decision.reason is expected


def test_eq_1_adds_what_is_queued_on_the_bound_worker(unit_costs, task, view):
    # 500 tokens at 1 ms + one 10 ms step = 0.51 s, behind 0.2 s of queued prefills.
    state = view(ttft=[9.0], itl=[0.06, 0.06], decode_queue=[7.0, 0.2], bound=1)
    assert local_estimate_s(unit_costs, task(increment=500), state, 1) == pytest.approx(0.71)


def test_eq_2_counts_own_prefix_hits_the_transfer_and_the_queue(unit_costs, task, view):
    # prompt 200 + 500; the worker caches 300: 400 tokens + 10 ms = 0.41 s; the decode worker
    # lacks 500 tokens of KV: 0.05 s; queue 0.3 s.
    state = view(ttft=[9.0], prefill_queue=[0.3], cached=[300])
    estimate = remote_estimates_s(unit_costs, task(history=200, increment=500), state)[0]
    assert estimate == pytest.approx(0.41 + 0.05 + 0.3)


def test_a_fully_cached_prompt_still_computes_its_last_token(unit_costs, task, view):
    state = view(ttft=[9.0], cached=[500])
    estimate = remote_estimates_s(unit_costs, task(increment=500), state)[0]
    assert estimate == pytest.approx(0.011 + 0.05)


def test_argmin_takes_the_least_of_eq_1_and_eq_2(rule, task, view):
    # local 0.51 + 0.2 = 0.71; remote 0.51 + 0.05 + queue.
    pressed = {"ttft": [2.0, 2.0], "itl": [0.06], "decode_queue": [0.2], "bound": 0}
    remote = rule.place(task(), view(prefill_queue=[0.3, 0.1], **pressed))
    assert (remote.reason, remote.worker_id) == (DecisionReason.ARGMIN_REMOTE, 101)
    assert dict(remote.estimates_s) == pytest.approx({"local": 0.71, "100": 0.86, "101": 0.66})
    local = rule.place(task(), view(prefill_queue=[0.3, 0.2], **pressed))
    assert (local.place, local.reason) == (Place.LOCAL, DecisionReason.ARGMIN_LOCAL)


def test_without_a_known_decode_worker_the_least_remote_estimate_is_taken(rule, task, view):
    decision = rule.place(task(), view(ttft=[2.0, 2.0], prefill_queue=[0.2, 0.1]))
    assert (decision.reason, decision.worker_id) == (DecisionReason.NO_DECODE_WORKER, 101)


def test_a_silent_decode_worker_has_slack_like_an_empty_window(rule, task, view):
    decision = rule.place(task(), view(ttft=[2.0], itl=[NAN], bound=0))
    assert decision.reason is DecisionReason.DECODE_SLACK
