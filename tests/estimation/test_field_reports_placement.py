# SPDX-License-Identifier: Apache-2.0
"""Reports about local and remote prefills, and workers left out, each with its minimal input."""

import pytest
from deployment_kit import DECODE, PREFILL, estimates, frontend, worker, worker_text
from prometheus_client import CollectorRegistry

from controller.estimation.doctor import Asked, Check, Level, diagnose
from controller.estimation.events import EventReason, starvation
from controller.estimation.regime.values import Regime, RegimeReason
from controller.estimation.roster import Role, RoleSource
from controller.routing.kernels.dynamo import stays_local
from controller.routing.registry import PLACEMENTS
from controller.runtime.router.handover import forwarded_request
from controller.runtime.router.records import RequestRecord
from controller.runtime.router.router_metrics import RouterMetrics
from controller.types import Decision, DecisionReason, Place, RoutingParams, Slo

pytestmark = pytest.mark.unit


def reasons(found):
    return {event.reason for event in found.events}


def test_llm_d_1466_what_is_cached_in_any_tier_is_not_computed_and_the_prompt_stays_local(
    unit_costs, task, view
):
    # 1,000 tokens, all but the last at the decode worker: 1 is left to compute, remotely 1,000.
    rule = PLACEMENTS["least_ttft"](unit_costs, Slo(1500, 60), RoutingParams(), None)
    seen = view(ttft=[0.1], itl=[0.01], bound=0, cached_tokens=[999])
    assert rule.place(task(history=999, increment=1), seen).place is Place.LOCAL


def test_llm_d_792_decisions_are_counted_by_reason_and_sum_to_the_requests(task):
    registry = CollectorRegistry()
    metrics = RouterMetrics(registry, "ampd")
    choices = [
        (Place.LOCAL, DecisionReason.DECODE_SLACK),
        (Place.REMOTE, DecisionReason.PREFILL_SLACK),
        (Place.LOCAL, DecisionReason.ARGMIN_LOCAL),
    ]
    for number, (place, reason) in enumerate(choices):
        record = RequestRecord(task(request_id=str(number)), Slo(1500, 60), 0.0)
        record.decision = Decision(place, None, reason)
        record.outcome = "local" if place is Place.LOCAL else "handed_over"
        metrics.observe(record, "other")
    counted = [
        sample
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "dynamo_equilibrium_route_decisions_total"
    ]
    assert sum(sample.value for sample in counted) == len(choices)
    assert {sample.labels["reason"] for sample in counted} == {r.value for _, r in choices}


def test_11514_the_preconditions_of_conditional_disaggregation_are_checked():
    silent = (
        worker(PREFILL, Role.PREFILL),
        worker(DECODE, Role.DECODE, kv_events=False, needs=("prefill",)),
    )
    findings = diagnose(estimates([{"f": frontend(0, 0)}] * 2, silent)[-1], Asked())
    assert any(f.check is Check.PREFIXES and "no KV events" in f.what for f in findings)


def test_a_cold_short_prompt_can_stay_local_with_us(unit_costs, task, view):
    # Dynamo wants the uncached share strictly below the ratio: cold prompts never qualify.
    assert not stays_local(17.0, 0.0, 64.0, 1.0)
    rule = PLACEMENTS["least_ttft"](unit_costs, Slo(1500, 60), RoutingParams(), None)
    busy = view(ttft=[0.1], prefill_queue=[0.5], itl=[0.01], bound=0)
    assert rule.place(task(increment=17), busy).place is Place.LOCAL


def test_462_a_prefill_pool_that_finishes_nothing_is_found_with_its_cause():
    def period(n):
        return {
            "f": frontend(10 * n, 10 * n),
            "p": worker_text(PREFILL, 0),
            "d": worker_text(DECODE, 10 * n, waiting=0),
        }

    found = estimates([period(n) for n in range(5)])
    assert EventReason.PREFILL_POOL_UNUSED not in reasons(found[1])
    assert EventReason.PREFILL_POOL_UNUSED in reasons(found[-1])
    (finding,) = [f for f in diagnose(found[-1], Asked()) if "prefill_pool_unused" in f.what]
    assert "eff_isl_threshold" in finding.fix


def test_14661_only_the_phase_of_a_leg_is_pinned():
    sent = forwarded_request({"routing": {"backend_instance_id": 5, "decode_worker_id": 6}}, 9)
    assert sent["routing"]["prefill_worker_id"] == 9
    assert "backend_instance_id" not in sent["routing"]


def test_7131_an_empty_prefill_pool_is_an_event_and_an_error():
    alone = (worker(DECODE, Role.DECODE, needs=("prefill",)),)
    found = estimates([{"f": frontend(0, 0)}] * 2, alone)[-1]
    assert reasons(found) == {EventReason.PREFILL_POOL_EMPTY}
    assert any(f.level is Level.ERROR and f.check is Check.POOLS for f in diagnose(found, Asked()))
    # A discovery that was not read says nothing about who is gone.
    assert reasons(estimates([{"f": frontend(0, 0)}] * 2, alone, complete=False)[-1]) == set()


def test_13238_two_backends_and_no_prefill_name_the_role_mismatch():
    both = [worker(n, Role.DECODE, source=RoleSource.COMPONENT, needs=("prefill",)) for n in (1, 2)]
    found = estimates([{"f": frontend(0, 0)}] * 2, both)[-1]
    (event,) = found.events
    assert event.reason is EventReason.PREFILL_POOL_EMPTY
    assert "none of them says its role" in event.what
    assert any(f.check is Check.ROLES for f in diagnose(found, Asked()))


def test_8551_starved_workers_are_named():
    counts = [120, 118, 115, 0, 0]
    workers = [worker(PREFILL, Role.PREFILL), *(worker(n, Role.DECODE) for n in range(1, 6))]

    def period(n):
        texts = {f"d{i}": worker_text(i + 1, c * n / 2, waiting=0) for i, c in enumerate(counts)}
        total = sum(counts) * n / 2
        return {"f": frontend(total, total), "p": worker_text(PREFILL, total), **texts}

    found = estimates([period(n) for n in range(3)], workers)[-1]
    (event,) = [e for e in found.events if e.reason is EventReason.WORKERS_STARVED]
    assert event.workers == (4, 5) and event.role is Role.DECODE
    index, order = starvation(dict(enumerate(counts)))
    assert index > 0.4 and set(order[:2]) == {3, 4}
    assert starvation({1: 5.0, 2: 5.0})[0] == pytest.approx(0.0)
    assert starvation({1: 0.0, 2: 5.0})[0] == pytest.approx(1.0)


def test_a_queue_threshold_that_holds_back_while_workers_idle_is_found():
    pending = 'dynamo_frontend_router_queue_pending_requests{worker_type="prefill"} 4'
    period = {"f": frontend(9, 5, more=pending), "p": worker_text(PREFILL, 5)}
    found = estimates([period] * 3)
    assert EventReason.QUEUE_THRESHOLD in reasons(found[-1])
    busy = {"f": frontend(9, 5, more=pending), "p": worker_text(PREFILL, 5, active=3)}
    assert EventReason.QUEUE_THRESHOLD not in reasons(estimates([busy] * 3)[-1])


def test_a_window_as_large_as_the_kv_pool_is_a_threshold_that_never_fires():
    odd = (worker(1, Role.PREFILL, step_tokens=65536, kv_blocks=1024, block_size=64),)
    findings = diagnose(estimates([{"f": frontend(0, 0)}] * 2, odd)[-1], Asked())
    assert any(f.check is Check.THRESHOLDS and "--max-prefill-tokens" in f.fix for f in findings)


def test_1074_a_queue_that_nothing_leaves_is_seen_by_its_age_not_its_length():
    def period(n):
        return {"f": frontend(20, 10, in_prefill=10), "p": worker_text(PREFILL, 10, active=10),
                "d": worker_text(DECODE, 10, waiting=0)}  # fmt: skip

    found = estimates([period(n) for n in range(10)])[-1]
    assert EventReason.QUEUE_STUCK in reasons(found)


def test_a_burst_that_piles_up_is_a_transition_and_its_end_is_below_again():
    started, done, periods = 0.0, 0.0, []
    for n in range(110):
        started += 50 if 5 <= n < 15 else 10
        done = min(started, done + 15)
        periods.append(
            {
                "f": frontend(started, done, in_prefill=started - done),
                "p": worker_text(PREFILL, done, active=started - done),
                "d": worker_text(DECODE, done, waiting=0),
            }
        )
    found = estimates(periods)
    said = [each.regime.pools[Role.PREFILL].regime for each in found]
    assert said[4] is Regime.BELOW
    assert said[5] is Regime.TRANSITION and said[8] is Regime.SATURATED
    changes = [c for each in found for c in each.regime.changes if c.role is None]
    after = [change.after for change in changes]
    assert after.index(Regime.TRANSITION) < after.index(Regime.SATURATED) < len(after) - 1
    assert after[-1] is Regime.BELOW
    assert all(isinstance(change.reason, RegimeReason) for change in changes)
