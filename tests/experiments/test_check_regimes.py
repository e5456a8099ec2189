# SPDX-License-Identifier: Apache-2.0
"""The checks of the estimation, on a few runs each."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments import check_regimes, estimation_cost, poa_calibration, poa_paper
from experiments.regime_runs import KINDS, draw, load_at, overload_s

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def last_line(main, monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["script.py", *words])
    assert main() == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_saturations_are_found_in_time_and_steady_loads_are_left_alone(monkeypatch, capsys):
    words = ("--runs", "6", "--stationary", "4", "--windows", "3", "--first-seed", "9001")
    found = last_line(check_regimes.main, monkeypatch, capsys, *words)
    assert found["detected_in_3_periods"] >= 5
    assert found["false_alarms"] == 0
    assert abs(found["poa_bias"]["below"]) < 0.2
    assert found["poa_windows"]["below"] == 9


@pytest.mark.parametrize("kind", KINDS)
def test_the_offered_load_of_a_run_is_what_it_says(kind):
    of = draw(kind, 3)
    before, late = load_at(of, np.array([of.start_s - 1, of.end_s - 0.01]))
    assert before == pytest.approx(of.low)
    assert late == pytest.approx(of.high, rel=0.01)
    at = overload_s(of)
    assert of.start_s <= at < of.end_s
    assert overload_s(draw("stationary", 3)) is None


def test_the_true_optimum_is_no_worse_than_what_was_done():
    result = poa_calibration.run_of(0.8, "round_robin", 1)
    (first, *_) = poa_calibration.windows_at(result, 3, 1)
    done, best = poa_calibration.true_costs(result, first, poa_calibration.Goal.LATENCY)
    assert 0 < best <= done + 1e-9


def test_a_tick_and_a_window_are_timed(monkeypatch, capsys):
    words = ("--workers", "8", "--ticks", "3")
    found = last_line(estimation_cost.main, monkeypatch, capsys, *words)
    assert found["tick_ms"] > 0 and found["poa_64x64_latency_ms"] > 0


def test_a_closed_loop_of_the_paper_has_every_index():
    site = poa_paper.SITES[3]
    row = poa_paper.measure(site, 4, 0.0, 1.0, 60, 8)
    assert row.prefill >= 1.0 and row.binding == pytest.approx(1.0)  # one decode worker
    assert row.realised > 0.5 and row.ttft_p99_ms >= row.ttft_p50_ms
    two = poa_paper.measure(poa_paper.SITES[2], 4, 0.7, 1.0, 60, 8)
    assert two.binding >= 1.0 and two.prefill is None


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (check_regimes.main, ("--windows", "1")),
        (estimation_cost.main, ("--workers", "1")),
        (poa_paper.main, ("--answers", "1")),
    ],
)
def test_bad_arguments_are_one_line(monkeypatch, capsys, main, words):
    monkeypatch.setattr("sys.argv", ["script.py", *words])
    assert main() == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
