# SPDX-License-Identifier: Apache-2.0
"""An estimate as lines, as JSON, as metrics; and what the command line refuses."""

import json
import math

import pytest
from deployment_kit import DECODE, PREFILL, estimates, frontend, worker_text
from prometheus_client import CollectorRegistry, generate_latest

from controller.cli.estimate_lines import lines
from controller.cli.main import main
from controller.estimation.as_json import estimate_json
from controller.estimation.doctor import Asked, Check, Level, diagnose
from controller.estimation.estimate import confirmed_idle
from controller.estimation.poa.report import report_of_log
from controller.runtime.estimation_metrics import EstimationMetrics

pytestmark = pytest.mark.unit


def working():
    return estimates(
        [
            {
                "f": frontend(10 * n, 10 * n - 1),
                "p": worker_text(PREFILL, 10 * n),
                "d": worker_text(DECODE, 10 * n - 1, active=1, waiting=0),
            }
            for n in range(1, 5)
        ]
    )[-1]


def test_lines_say_regime_pools_traffic_and_what_is_not_known():
    shown = "\n".join(lines(working(), report_of_log([])))
    assert shown.startswith("regime        below (work_keeps_up")
    assert "prefill       below" in shown and "1 workers" in shown
    assert "traffic       2.00/s started" in shown
    assert "ttft_mean_s (never_seen)" in shown
    assert "unknown: 0 windows" in shown and "incomplete" in shown


def test_json_holds_values_and_reasons_and_is_json():
    found = json.loads(json.dumps(estimate_json(working(), report_of_log([]))))
    assert found["regime"]["regime"] == "below"
    assert found["readings"]["started_per_s"] == {"value": 2.0}
    assert found["readings"]["ttft_p99_s"] == {"unknown": "never_seen"}
    assert found["pools"]["prefill"]["served_by"] == {f"{PREFILL:x}": 30.0}
    assert found["names"]["requests_started"] == ["dynamo_frontend_requests_started_total"]


def test_metrics_show_the_regime_and_nan_for_unknown():
    registry = CollectorRegistry()
    metrics = EstimationMetrics(registry)
    found = working()
    metrics.show(found, report_of_log([]))
    text = generate_latest(registry).decode()
    prefix = "dynamo_equilibrium_"
    assert f'{prefix}regime{{{prefix}regime="below",pool="all"}} 1.0' in text
    assert f'{prefix}regime{{{prefix}regime="saturated",pool="prefill"}} 0.0' in text
    assert f"{prefix}readings_unknown {float(len(found.unknown))}" in text
    assert f'{prefix}inefficiency_ratio{{goal="latency",stage="prefill"}} NaN' in text
    value = registry.get_sample_value(f"{prefix}saturation_ratio", {"pool": "prefill"})
    assert value is not None and math.isnan(value)


def test_a_silent_deployment_is_not_confirmed_idle():
    assert confirmed_idle(estimates([{"f": frontend(0, 0)}] * 3)[-1])
    assert not confirmed_idle(estimates([{"f": None}] * 3)[-1])


def test_the_doctor_says_what_does_not_answer_and_how_to_mend_it():
    found = diagnose(estimates([{"f": None}] * 3)[-1], Asked(discovery_failure="refused"))
    (scrape,) = [f for f in found if "does not answer" in f.what]
    assert scrape.level is Level.ERROR and "DYN_SYSTEM_PORT" in scrape.fix
    assert {f.check for f in found} == set(Check)
    bad = [f for f in found if f.level in (Level.ERROR, Level.WARNING, Level.NOTE)]
    assert all(f.fix for f in bad)


def test_the_doctor_compares_block_sizes():
    from deployment_kit import worker

    from controller.estimation.roster import Role

    mixed = [worker(1, Role.PREFILL, block_size=16), worker(2, Role.DECODE, block_size=64)]
    found = diagnose(estimates([{"f": frontend(0, 0)}] * 2, mixed)[-1], Asked())
    assert any(f.check is Check.BLOCK_SIZE and f.level is Level.ERROR for f in found)
    alike = [worker(1, Role.PREFILL, block_size=16)]
    found = diagnose(estimates([{"f": frontend(0, 0)}] * 2, alike)[-1], Asked(block_size=128))
    assert any("--router-block-size" in f.fix for f in found)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["estimate"], "name a deployment"),
        (["doctor"], "name a deployment"),
        (["estimate", "--url", "x", "--interval", "0"], "--interval"),
        (["estimate", "--url", "x", "--looks", "0"], "--looks"),
        (["estimate", "--url", "x", "--metrics-port", "1"], "--watch"),
        (["estimate", "--url", "x", "--forward-passes"], "--run-dir"),
        (["estimate", "--run-dir", "/nowhere"], "/nowhere"),
        (["estimate", "--url", "x", "--decisions", "/nowhere"], "/nowhere"),
        (["estimate", "--url", "x", "--profile", "nope", "--decisions", "x"], "nope"),
        (["doctor", "--url", "x", "--looks", "0"], "--looks"),
    ],
)
def test_what_the_operator_gave_wrongly_is_one_line_and_exit_code_2(arguments, said, capsys):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
