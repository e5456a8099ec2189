# SPDX-License-Identifier: Apache-2.0
"""One factor a system and engine, and the error that is left."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.corrections import (
    Metric,
    Prediction,
    cross_validated_pct,
    dump_corrections,
    errors_pct,
    fit_factors,
    parse_corrections,
)
from analysis.silicon import Point
from controller.errors import UserError

pytestmark = pytest.mark.unit


def prediction(system: str, measured: float, predicted: float, number: int = 0) -> Prediction:
    point = Point(
        id=str(number),
        model="m",
        system=system,
        backend="vllm",
        uncovered=None,
        ttft_ms=10 * measured,
        tpot_ms=measured,
    )
    return Prediction(point, "p", tpot_ms=predicted, ttft_ms=20 * predicted, running=1.0)


def test_factors_take_out_a_constant_scale() -> None:
    made = [prediction("h100", 1.25 * ms, ms) for ms in (5.0, 10.0, 40.0)]
    made += [prediction("b200", 0.5 * ms, ms) for ms in (5.0, 10.0, 40.0)]
    factors = fit_factors(made)
    assert factors["h100", "vllm"].tpot == pytest.approx(1.25)
    assert factors["h100", "vllm"].ttft == pytest.approx(0.625)
    assert factors["b200", "vllm"].tpot == pytest.approx(0.5)
    assert errors_pct(made, Metric.TPOT, factors) == pytest.approx(np.zeros(6), abs=1e-9)
    assert errors_pct(made, Metric.TTFT, factors) == pytest.approx(np.zeros(6), abs=1e-9)


def test_raw_errors_are_relative_to_what_was_measured() -> None:
    assert errors_pct([prediction("h100", 20.0, 15.0)], Metric.TPOT) == pytest.approx([25.0])


def test_one_outlier_does_not_move_a_factor() -> None:
    made = [prediction("h100", 10.0, 10.0) for _ in range(9)]
    assert fit_factors([*made, prediction("h100", 900.0, 1.0)])["h100", "vllm"].tpot == 1.0


def test_a_group_without_a_factor_is_not_corrected() -> None:
    factors = fit_factors([prediction("h100", 20.0, 10.0)])
    assert errors_pct([prediction("a100", 20.0, 10.0)], Metric.TPOT, factors) == [50.0]


def test_cross_validation_does_not_see_the_point() -> None:
    rng = np.random.default_rng(1)
    made = [prediction("h100", float(rng.lognormal(2, 0.5)), 10.0, n) for n in range(8)]
    inside = errors_pct(made, Metric.TPOT, fit_factors(made))
    outside = cross_validated_pct(made, Metric.TPOT, [0, 1, 2])
    assert len(outside) == 3 * len(made)
    assert np.median(outside) > np.median(inside)


def test_the_file_round_trips() -> None:
    factors = fit_factors([prediction("h100", 12.0, 10.0), prediction("b200", 9.0, 10.0)])
    file = parse_corrections(dump_corrections(factors, "why", "Apache-2.0", "abc"), "x.json")
    assert {(each.system, each.backend): each for each in file.factors} == factors
    assert file.fitted_on == "abc"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"tpot": 1.2', '"tpot": -1', r"corrections x\.json: factors\.0\.tpot"),
        ("corrections/1", "corrections/9", r"corrections x\.json: schema"),
    ],
)
def test_a_broken_file_is_named(old: str, new: str, said: str) -> None:
    factors = fit_factors([prediction("h100", 12.0, 10.0)])
    text = dump_corrections(factors, "why", "Apache-2.0", "abc")
    with pytest.raises(UserError, match=said):
        parse_corrections(text.replace(old, new), "x.json")
