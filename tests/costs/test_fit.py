# SPDX-License-Identifier: Apache-2.0
"""Fitting whole steps: a known law comes back, outliers do not matter, bad tables are named."""

from __future__ import annotations

import numpy as np
import pytest
from test_cost_model import rich_tables

from controller.costs.checks import problem
from controller.costs.errors_report import StepKind
from controller.costs.fit import FitError, FitOptions, fit_step_tables
from controller.costs.measurements import (
    MeasurementError,
    StepMeasurements,
    format_measurements,
    measurements,
    parse_measurements,
)
from controller.costs.mixed_fit import with_overlap
from controller.costs.model import TableCost
from controller.costs.tables import additive, linear_tables
from controller.runtime.resources import read_profile

pytestmark = pytest.mark.unit

LINEAR = TableCost(linear_tables(15e-3, 2e-5, 3e-8, 5.23e-5, 9e-10, 2048, 0.002, 327680, 25e9))
BENT = TableCost(rich_tables(**additive(), capture_sizes=np.array([])))


def steps(cost: TableCost, count: int, seed: int, top: int = 2048) -> StepMeasurements:
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, count)
    batch = np.where(kind == 0, 0, 2 ** rng.integers(0, 5, count))
    context = batch * rng.integers(16, 8000, count)
    chunk = np.where(kind == 1, 0, np.exp(rng.uniform(np.log(16), np.log(top), count)).round())
    history = rng.integers(0, 4000, count) * (rng.random(count) < 0.5)
    blank = measurements(batch, context, chunk, history, np.ones(count))
    times = cost.steps_s(blank.batch, blank.context, blank.chunk, blank.pairs)
    return measurements(batch, context, chunk, history, times)


def spoiled(m: StepMeasurements, noise: float, outliers: float) -> StepMeasurements:
    rng = np.random.default_rng(7)
    times = m.step_s * np.exp(rng.normal(0, noise, len(m)))
    times[rng.random(len(m)) < outliers] *= 5.0
    return StepMeasurements(m.batch, m.context, m.chunk, m.pairs, times)


def worst(cost: TableCost, truth: StepMeasurements, share: float = 100.0) -> float:
    found = cost.steps_s(truth.batch, truth.context, truth.chunk, truth.pairs)
    return float(np.percentile(np.abs(found / truth.step_s - 1), share))


def test_a_linear_law_comes_back_from_few_steps():
    fitted = fit_step_tables(steps(LINEAR, 60, 0))
    assert worst(TableCost(fitted.tables), steps(LINEAR, 500, 1)) < 1e-6
    assert fitted.errors.overall.p95_pct < 1e-4
    assert set(fitted.errors.by_kind) <= set(StepKind)


def test_noise_and_outliers_hardly_move_the_fit():
    fitted = fit_step_tables(spoiled(steps(LINEAR, 1500, 0), noise=0.05, outliers=0.03))
    assert worst(TableCost(fitted.tables), steps(LINEAR, 500, 1)) < 0.02
    assert 2.0 < fitted.errors.overall.median_pct < 5.0  # the noise itself, honestly


def test_breakpoints_are_found_where_the_law_bends():
    many = steps(BENT, 3000, 0, top=512)
    fitted = fit_step_tables(many)
    assert len(fitted.tables.batch) > 2
    straight = fit_step_tables(many.take(np.arange(40)))
    fresh = steps(BENT, 1000, 1, top=512)
    assert worst(TableCost(fitted.tables), fresh, 95) < 0.06
    assert worst(TableCost(fitted.tables), fresh, 95) < worst(TableCost(straight.tables), fresh, 95)


@pytest.mark.parametrize("seed", range(4))
def test_fitted_tables_keep_the_rules_whatever_the_noise(seed: int):
    m = steps(BENT, 200, seed, top=512)
    noisy = np.random.default_rng(seed).lognormal(0, 1.0, len(m))
    fitted = fit_step_tables(StepMeasurements(m.batch, m.context, m.chunk, m.pairs, noisy))
    assert problem(fitted.tables) is None


def test_decode_only_and_prefill_only_measurements_fit():
    m = steps(LINEAR, 300, 0)
    for mask in (m.chunk == 0, m.batch == 0):
        fitted = fit_step_tables(m.take(mask))
        assert worst(TableCost(fitted.tables), m.take(mask)) < 1e-6
        assert problem(fitted.tables) is None


def test_options_reach_the_tables():
    options = FitOptions(max_chunk_tokens=777, kv_latency_s=0.5, capture_sizes=(1, 8, 64))
    tables = fit_step_tables(steps(LINEAR, 60, 0), options).tables
    assert TableCost(tables).max_chunk_tokens == 777
    assert TableCost(tables).kv_transfer_s(1) >= 0.5
    assert tables.capture_sizes.tolist() == [1, 8, 64]


def test_too_few_steps_are_refused():
    with pytest.raises(FitError, match="only 9 measured steps"):
        fit_step_tables(steps(LINEAR, 9, 0))


def test_a_csv_comes_back_as_it_was_written():
    rows = [(0, 0, 512, 100, 12.5), (4, 4000, 0, 0, 9.25), (2, 100, 64, 0, 11.0)]
    m = parse_measurements(format_measurements(rows), "steps.csv")
    assert m.pairs.tolist() == [512 * 356.0, 0.0, 64 * 32.0]
    assert m.step_s.tolist() == [0.0125, 0.00925, 0.011]
    assert m.context.tolist() == [0, 4000, 100]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,10,0,0,-2", "row 2, step_ms: expected a number from 0 up, got '-2'"),
        ("1,10,0,0,0", "row 2, step_ms: must be above 0"),
        ("1,10,0,0,nan", "row 2, step_ms: expected"),
        ("1,many,0,0,5", "row 2, context_tokens: expected a number from 0 up, got 'many'"),
        ("1,10,,0,5", "row 2, prefill_tokens: expected a number from 0 up, got nothing"),
        ("0,0,0,0,5", "row 2: neither batch nor prefill_tokens above 0"),
        ("0,100,5,0,5", "row 2: context_tokens without decodes (batch 0)"),
        ("1e308,10,0,0,5", "row 2, batch: expected a number from 0 up, got '1e308'"),
    ],
)
def test_a_bad_row_is_named_with_its_column(row: str, said: str):
    header = "batch,context_tokens,prefill_tokens,prefill_context_tokens,step_ms"
    with pytest.raises(MeasurementError) as caught:
        parse_measurements(f"{header}\n{row}\n", "steps.csv")
    assert str(caught.value).startswith(f"steps.csv: {said}")


@pytest.mark.parametrize("text", ["", "batch,step_ms\n1,2\n"])
def test_a_missing_column_is_named(text: str):
    with pytest.raises(MeasurementError, match=r"steps\.csv: missing column "):
        parse_measurements(text, "steps.csv")


def test_what_is_no_csv_is_named():
    with pytest.raises(MeasurementError, match=r"steps\.csv: not a CSV"):
        parse_measurements("a" * 200_000, "steps.csv")


def wide(cost: TableCost, count: int, seed: int) -> StepMeasurements:
    """Steps of batches up to 256 with 1 % noise, a third of them mixed."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, count)
    batch = np.where(kind == 0, 0, np.exp(rng.uniform(0, np.log(256), count)).round())
    each = np.exp(rng.uniform(np.log(64), np.log(8192), count)).round()
    context = batch * np.where(batch * each > 300_000, 64, each)
    chunk = np.where(kind == 1, 0, np.exp(rng.uniform(np.log(16), np.log(2048), count)).round())
    history = rng.integers(0, 8000, count) * (rng.random(count) < 0.5)
    blank = measurements(batch, context, chunk, history, np.ones(count))
    times = cost.steps_s(blank.batch, blank.context, blank.chunk, blank.pairs)
    return measurements(batch, context, chunk, history, times * rng.normal(1, 0.01, count))


def test_mixed_steps_that_overlap_are_followed_where_the_options_allow_it():
    m = wide(read_profile("qwen3_32b_tp2_rtxpro6000").cost_model(), 1500, 0)
    sums = fit_step_tables(m, FitOptions())
    found = fit_step_tables(m, FitOptions(overlap=True))
    assert len(sums.tables.overlap) == 0 and len(found.tables.overlap) > 0
    assert problem(found.tables) is None
    assert found.errors.overall.p95_pct < 0.8 * sums.errors.overall.p95_pct
    fresh = wide(read_profile("qwen3_32b_tp2_rtxpro6000").cost_model(), 1500, 1)
    errors = [worst(TableCost(each.tables), fresh, 95) for each in (found, sums)]
    assert errors[0] < 0.8 * errors[1]


def test_mixed_steps_that_are_sums_stay_sums():
    fitted = fit_step_tables(wide(LINEAR, 600, 0), FitOptions(overlap=True))
    assert len(fitted.tables.overlap) == 0


def test_too_few_mixed_steps_show_no_overlap():
    fitted = fit_step_tables(steps(LINEAR, 60, 0), FitOptions(overlap=True))
    assert with_overlap(fitted.tables, steps(LINEAR, 60, 0)) is None
