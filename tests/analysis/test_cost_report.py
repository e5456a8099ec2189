# SPDX-License-Identifier: Apache-2.0
"""Tables, CSV and plots of predicted against measured."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from analysis.corrections import Factor, Metric, Prediction
from analysis.cost_report import (
    coverage_lines,
    error_rows,
    error_table,
    plot_points,
    write_points,
)
from analysis.silicon import Point, Uncovered

pytestmark = pytest.mark.unit

FACTORS = {("h100", "vllm"): Factor(system="h100", backend="vllm", tpot=2.0, ttft=1.0, points=9)}


def prediction(model: str, measured_ms: float, predicted_ms: float) -> Prediction:
    point = Point(
        id=model,
        model=model,
        system="h100",
        backend="vllm",
        uncovered=None,
        precision="bf16",
        tp=1,
        isl=8,
        osl=8,
        concurrency=1,
        ttft_ms=measured_ms,
        tpot_ms=measured_ms,
    )
    return Prediction(point, "some_profile", predicted_ms, predicted_ms, running=1.0)


MADE = [prediction("a", 20.0, 10.0), prediction("a", 20.0, 11.0), prediction("b", 10.0, 10.0)]


def test_rows_hold_raw_and_corrected_errors_of_their_group() -> None:
    a, b = error_rows(MADE, Metric.TPOT, FACTORS, lambda each: (each.point.model,))
    assert (a.group, a.points, b.points) == (("a",), 2, 1)
    assert a.raw_median == pytest.approx(47.5)
    assert a.median == pytest.approx(5.0)
    assert (b.raw_median, b.median) == (0.0, 100.0)
    assert a.bias == pytest.approx(0.525)


def test_a_table_has_a_line_a_group_below_its_header() -> None:
    rows = error_rows(MADE, Metric.TPOT, FACTORS, lambda each: (each.point.model,))
    head, first, second = error_table(rows)
    assert "raw med" in head
    assert first.startswith("a ") and second.startswith("b ")


def test_coverage_names_the_reasons_and_the_models() -> None:
    gone = Point("x", "kimi-k2.5", "b200", "vllm", Uncovered.NO_PROFILE)
    lines = coverage_lines([MADE[0].point, gone, gone])
    assert lines[0] == "covered: 1 of 3 points (33%)"
    assert lines[1].endswith("degree: 2 (kimi-k2.5 2)")


def test_the_csv_has_every_point_with_its_correction(tmp_path: Path) -> None:
    write_points(tmp_path / "points.csv", MADE, FACTORS)
    rows = list(csv.DictReader((tmp_path / "points.csv").open()))
    assert len(rows) == 3
    assert float(rows[1]["corrected_tpot_ms"]) == 22.0
    assert float(rows[1]["corrected_ttft_ms"]) == 11.0


@pytest.mark.parametrize("metric", Metric)
def test_a_plot_is_a_picture(metric: Metric, tmp_path: Path) -> None:
    plot_points(tmp_path / "plot.png", MADE, metric, FACTORS)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
