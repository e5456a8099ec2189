# SPDX-License-Identifier: Apache-2.0
"""Reports of Dynamo's users about metrics that lie, vanish or change, each with its minimal input.

The numbers are issues of ai-dynamo/dynamo unless another repository is named.
"""

import pytest
from deployment_kit import (
    DECODE,
    PREFILL,
    estimates,
    frontend,
    worker,
    worker_text,
)
from estimation_kit import histogram, look, texts, window
from shared_data import shared_path

from controller.estimation.deployment import DeploymentView, concurrency, orphans
from controller.estimation.doctor import Asked, Check, Level, diagnose
from controller.estimation.estimate import Discovered, Estimator, EstimatorParams
from controller.estimation.events import EventReason
from controller.estimation.identity import in_namespace, same_model, worker_id
from controller.estimation.readings import Known, Unknown, Why
from controller.estimation.regime.values import Regime
from controller.estimation.roster import Role, RoleSource, Roster, from_cards, merged
from controller.estimation.signals import IdBase, Signal
from controller.estimation.worker_ids import WorkerIds

pytestmark = pytest.mark.unit

ISL = "dynamo_frontend_input_sequence_tokens"
TTFT = "dynamo_frontend_time_to_first_token_seconds"
ITL = "dynamo_frontend_inter_token_latency_seconds"


def test_3131_nan_with_zero_requests_is_idle_and_nan_with_traffic_is_unknown():
    nothing = [{"f": frontend(0, 0, more=f"{ISL}_sum NaN\n{ISL}_count 0")}] * 4
    assert estimates(nothing)[-1].regime.overall.regime is Regime.IDLE
    busy = [
        {"f": frontend(12 * n, 12 * n, more=f"{ISL}_sum NaN\n{ISL}_count NaN")} for n in range(3)
    ]
    last = estimates(busy)[-1]
    assert isinstance(last.readings.input_tokens, Unknown)
    assert last.regime.overall.regime is not Regime.IDLE


def test_6985_sustained_idle_is_a_regime_and_a_short_gap_is_not():
    work = [(7 * n, 7 * n) for n in range(4)]

    def run(*quiet):
        counts = work + [work[-1] if same else None for same in quiet]
        periods = [
            {
                "f": None if c is None else frontend(*c),
                "p": worker_text(PREFILL, c[1] if c else work[-1][1]),
                "d": worker_text(DECODE, c[1] if c else work[-1][1], waiting=0),
            }
            for c in counts
        ]
        return [each.regime.overall.regime for each in estimates(periods)]

    assert run(True, True)[-1] is Regime.BELOW
    assert run(True, True, True)[-1] is Regime.IDLE
    assert Regime.IDLE not in run(False, False, False, False)


def test_14575_an_outage_never_looks_like_no_load():
    periods = [{"f": frontend(7 * n, 7 * n)} for n in range(3)] + [{"f": None}] * 6
    found = estimates(periods)
    assert found[-1].regime.overall.regime is Regime.UNKNOWN
    assert "started_per_s" in found[-1].stale
    assert found[-1].failures == {"f": "connection refused"}


def test_an_empty_result_for_one_signal_leaves_that_signal_unknown():
    found = estimates([{"f": frontend(7 * n, 7 * n)} for n in range(3)])[-1]
    assert found.readings.ttft_mean_s == Unknown(Why.NEVER_SEEN)
    assert found.readings.started_per_s == Known(7 / 5)


def test_14514_before_the_first_request_it_is_idle():
    text = shared_path("fixtures/dynamo-1.6.1-frontend-idle-before-first-request.prom").read_text()
    found = estimates([{"f": text}] * 2)[-1]
    assert found.no_traffic_yet
    assert found.regime.overall.regime is Regime.IDLE


def test_14839_a_quantile_in_the_last_bucket_is_censored():
    before = histogram(ITL, {"1": 0, "2.0": 0, "+Inf": 0}, 0.0)
    after = histogram(ITL, {"1": 0, "2.0": 0, "+Inf": 50}, 150.0)
    found = texts(before, after)
    assert found.quantile(Signal.ITL, 0.99) == Known(2.0, at_least=True)
    assert str(found.quantile(Signal.ITL, 0.99)) == ">2 (censored)"
    assert found.mean(Signal.ITL) == Known(3.0)


@pytest.mark.parametrize(
    ("signal", "new", "old"),
    [
        (Signal.ACTIVE, "dynamo_frontend_active_requests", "dynamo_frontend_inflight_requests"),
        (Signal.ACTIVE, "dynamo_frontend_active_requests", "nv_llm_http_service_inflight_requests"),
        (Signal.QUEUED, 'dynamo_frontend_stage_requests{stage="dispatch"}',
         "dynamo_frontend_queued_requests"),
        (Signal.PLANNER_PREFILL, "dynamo_planner_num_prefill_workers",
         "planner:num_prefill_workers"),
    ],
)  # fmt: skip
def test_renamed_signals_read_the_same_and_never_twice(signal, new, old):
    for text in (f"{old} 3", f"{new} 3", f"{old} 3\n{new} 3", f"{new} 3\n{old} 99"):
        assert texts(text).gauge(signal) == Known(3.0)
    assert texts(f"{old} 3\n{new} 3").names()[signal][0] == new.partition("{")[0]


def test_7235_kv_usage_under_its_new_name_and_under_none():
    new = 'vllm:kv_cache_usage_perc{engine="0"} 0.93'
    assert texts(new).gauge(Signal.KV_USAGE) == Known(0.93)
    period = {"f": frontend(1, 1), "d": worker_text(DECODE, 1)}
    found = diagnose(estimates([period] * 2)[-1], Asked())
    lacking = [each for each in found if each.what.startswith("kv_usage has never been there")]
    assert len(lacking) == 1 and lacking[0].level is Level.WARNING
    assert "vllm:kv_cache_usage_perc" in lacking[0].what
    assert "vllm:gpu_cache_usage_perc" in lacking[0].what


def test_8239_a_role_comes_from_the_registered_worker_type_not_from_a_label():
    cards = [
        (1, "dynamo", "backend", {"worker_type": "prefill"}),
        (2, "dynamo", "backend", {"worker_type": "decode"}),
    ]
    roster = merged(from_cards(cards))
    assert [w.worker_id for w in roster.of(Role.PREFILL)] == [1]
    assert [w.worker_id for w in roster.of(Role.DECODE)] == [2]
    guess = merged(from_cards([(1, "dynamo", "backend", {})]), {1: Role.PREFILL})
    assert guess.workers[1].source is RoleSource.LABEL
    assert guess.workers[1].role is Role.PREFILL


def test_ids_in_decimal_and_hexadecimal_are_one_worker():
    fixtures = ("frontend-disagg-mocker", "prefill-worker-mocker")
    looks = [
        look(shared_path(f"fixtures/dynamo-1.6.1-{name}.prom").read_text(), at_s, name)
        for name in fixtures
        for at_s in (0.0, 5.0)
    ]
    estimator = Estimator(EstimatorParams())
    estimator.take(looks)
    # Nothing but the metrics: roles by the frontend's labels.
    found = estimator.tick(5.0, Discovered())
    assert [w.worker_id for w in found.roster.of(Role.PREFILL)] == [0x117942D4E88C6E89]
    assert [w.worker_id for w in found.roster.of(Role.DECODE)] == [DECODE]
    assert found.readings.pools[Role.PREFILL].served_by == {1259111053028781705: 0.0}
    assert worker_id("117942d4e88c6e89", IdBase.HEX) == worker_id(
        "1259111053028781705", IdBase.DECIMAL
    )
    # Ten digits could be either: who is alive decides.
    assert worker_id("1234567890", IdBase.DECIMAL, live={0x1234567890}) == 0x1234567890
    assert worker_id("1234567890", IdBase.DECIMAL, live={1234567890}) == 1234567890
    assert worker_id("no id", IdBase.HEX) is None


def test_the_model_label_is_lower_cased():
    text = 'dynamo_frontend_active_requests{model="qwen/qwen3-0.6b"} 3'
    made = window(look(text, 0.0))
    roster = Roster({}, complete=False)
    assert DeploymentView(made, roster, "Qwen/Qwen3-0.6B").read().active == Known(3.0)
    assert same_model("Qwen/Qwen3-0.6B", "qwen/qwen3-0.6b")
    other = DeploymentView(made, roster, "other").read().active
    assert isinstance(other, Unknown)


def test_namespaces_are_equal_with_dashes_and_generation_suffix():
    assert in_namespace("my_ns", "my-ns")
    assert in_namespace("my-ns-3fa9c1", "my-ns")
    assert not in_namespace("my_nsother", "my-ns")
    assert not in_namespace("other", "my-ns")


def test_14606_series_of_removed_workers_are_left_out():
    gauge = 'dynamo_frontend_worker_active_decode_blocks{{worker_id="{}",worker_type="decode"}} {}'
    text = "\n".join([gauge.format(7, 900), gauge.format(8, 100),
                      'dynamo_frontend_model_total_kv_blocks 1000'])  # fmt: skip
    made = window(look(text, 0.0))
    roster = Roster({8: worker(8, Role.DECODE)}, complete=True)
    assert orphans(made, roster, WorkerIds({8})) == (7,)
    usage = DeploymentView(made, roster).read().pools[Role.DECODE].utilisation
    assert usage == Known(0.1)


def test_trtllm_14882_a_prefix_signal_that_is_dead_is_found():
    def period(n):
        hits = histogram("dynamo_component_router_kv_hit_rate", {"0": 30 * n, "+Inf": 30 * n}, 0.0)
        cached = histogram("dynamo_frontend_cached_tokens", {"+Inf": 30 * n}, 900.0 * n)
        return {"f": frontend(30 * n, 30 * n, more=f"{hits}\n{cached}")}

    found = estimates([period(n) for n in range(3)])[-1]
    assert [e.reason for e in found.events] == [EventReason.PREFIX_SIGNAL_DEAD]
    findings = diagnose(found, Asked())
    assert any(
        f.check is Check.PREFIXES and f.fix.startswith("turn KV events on") for f in findings
    )


def test_concurrency_is_littles_law_or_unknown_and_never_zero_for_want_of_a_series():
    rate, gone = Known(2.0), Unknown(Why.NEVER_SEEN)
    assert concurrency(rate, Known(0.5), Known(100.0), Known(0.02)) == Known(5.0)
    assert concurrency(rate, gone, Known(100.0), Known(0.02)) == gone
    assert concurrency(Known(0.0), gone, gone, gone) == Known(0.0)
