# SPDX-License-Identifier: Apache-2.0
"""Operator tables: reading, fitting, judging; on invented kernels, and on real ones if present."""

from __future__ import annotations

import numpy as np
import pytest
from op_kit import BATCHES, CHUNKS, SIZES, mixed_us, prefill_us, texts
from shared_data import shared_path

from controller.costs.attention_fit import fill_short, fit_attention, needed_rows, size_grid
from controller.costs.checks import problem
from controller.costs.curves import Curve, breakpoints, fit_curve, rising, weighted_sum
from controller.costs.errors_report import StepKind
from controller.costs.grid_fit import fit_grid, monotone
from controller.costs.measurements import MeasurementError
from controller.costs.op_profiles import attention_cost, fit_moe, fit_ops, holdout_errors
from controller.costs.op_tables import MoeSamples, parse_op_tables
from controller.costs.overlap_rules import cone, enforce, lattice_times
from controller.runtime.operator_tables import read_op_tables

pytestmark = pytest.mark.unit

SHARE = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.88, 1.0])


def test_a_folder_is_read_into_arrays():
    tables = parse_op_tables(texts(moe=True), "gpu")
    assert len(tables.attention) == 16 + 20 + 320
    assert set(tables.dense) == {"embedding", "layernorm", "qkv_proj"}
    assert tables.dense["qkv_proj"][1][-1] == pytest.approx(214.8e-6)
    assert tables.moe is not None
    assert tables.moe.seconds.max() == pytest.approx(1024e-6)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("dense", None, "gpu: dense.csv is missing"),
        ("dense", "layer,time_us\n", "gpu/dense.csv: missing column tokens"),
        ("dense", "layer,tokens,time_us\n", "gpu/dense.csv: no rows"),
        ("per_sequence", "layer,sequences,time_us\na,1,0\n", "row 2, time_us: must be above 0"),
        ("attention", texts()["attention"] + "1,2,3,4,x\n", "row 358, time_us: expected a number"),
    ],
)
def test_a_bad_folder_is_named_in_one_line(name: str, text: str | None, said: str):
    given = {**texts(), name: text}
    with pytest.raises(MeasurementError) as caught:
        parse_op_tables({k: v for k, v in given.items() if v is not None}, "gpu")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_attention_that_overlaps_is_fitted_and_monotone():
    cost = attention_cost(fit_attention(parse_op_tables(texts(), "gpu").attention))
    assert problem(cost.tables) is None
    errors = [
        cost.mixed_step_s(b, b * k, x, h) * 1e6 / mixed_us(x, h, b, k) - 1
        for x in CHUNKS
        for h in SIZES
        for b in BATCHES
        for k in SIZES[1:]
    ]
    assert np.percentile(np.abs(errors), 95) < 0.12
    alone = [cost.prefill_s(h, 1) for h in (0, 100, 8000)]
    assert alone == sorted(alone)
    found = cost.step_s(0, 0, 256, 256 * 1152.0) * 1e6
    assert found == pytest.approx(prefill_us(256, 1024), rel=0.1)


def test_holdout_errors_are_those_of_rows_that_were_not_fitted():
    clean = holdout_errors(parse_op_tables(texts(moe=True), "gpu"), seed=0)
    noisy = holdout_errors(parse_op_tables(texts(noise=0.2, moe=True), "gpu"), seed=0)
    assert set(clean.tables) == {"attention", "dense", "per_sequence", "moe"}
    assert set(clean.attention) == set(StepKind)
    assert clean.tables["attention"].count == 178
    assert clean.tables["attention"].median_pct < 4.0
    # A fit that had seen the rows would follow the noise; one that has not errs by about it.
    assert noisy.tables["attention"].median_pct > 9.0


@pytest.mark.parametrize("folder", ["rtx4090_llama31_8b/tp1", "rtxpro6000_qwen3_32b/tp2"])
def test_real_kernels_are_predicted_from_half_of_their_rows(folder: str):
    tables = read_op_tables(shared_path(f"validation/op_profiles/{folder}"))
    found = holdout_errors(tables, seed=0)
    assert found.overall.median_pct <= 3.0
    assert found.overall.p95_pct <= 12.0
    assert found.attention[StepKind.MIXED].p95_pct <= 12.0
    assert found.attention[StepKind.PREFILL_WITH_HISTORY].median_pct <= 3.0


def test_experts_cost_by_activation_and_by_tokens_for_each():
    samples = parse_op_tables(texts(moe=True), "gpu").moe
    assert isinstance(samples, MoeSamples)
    table = fit_moe(samples)
    found = table(np.array([64.0, 300.0]), np.array([32.0, 64.0]))
    np.testing.assert_allclose(found * 1e6, [224.0, 534.0], rtol=0.1)


def test_every_table_of_a_folder_gets_its_fit():
    ops = fit_ops(parse_op_tables(texts(moe=True), "gpu"))
    assert ops.moe is not None
    assert float(ops.dense["qkv_proj"](1536.0)) == pytest.approx(163.6e-6, rel=0.01)


def test_a_curve_drops_outliers_and_needless_breakpoints():
    at = np.arange(1.0, 101.0)
    value = 1.0 + np.maximum(0.0, at - 50.0)
    value[20] *= 3.0
    curve = fit_curve(at, value)
    assert len(curve.at) <= 4
    np.testing.assert_allclose(curve(np.array([21.0, 60.0, 200.0])), [1.0, 11.0, 151.0], rtol=0.01)


def test_a_curve_that_falls_becomes_one_that_does_not():
    fallen = rising(Curve(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 2.0, 5.0])))
    assert (np.diff(fallen.value) >= 0).all()
    assert fallen.value[1] == pytest.approx(8**0.5)


def test_curves_add_up_with_weights():
    one = Curve(np.array([0.0, 10.0]), np.array([1.0, 2.0]))
    two = Curve(np.array([5.0, 10.0]), np.array([1.0, 3.0]))
    both = weighted_sum([(2.0, one), (1.0, two)], 0.0)
    assert float(both(7.5)) == pytest.approx(2 * 1.75 + 2.0)
    line = np.array([0.0, 1.0, 2.0])
    assert breakpoints(line, line + 1.0, 0.01).tolist() == [0, 2]


def test_a_grid_fills_what_no_measurement_reaches():
    rows, columns = np.array([1.0, 2, 4, 8]), np.array([10.0, 100, 1000])
    a, b = (side.ravel() for side in np.meshgrid(rows, columns, indexing="ij"))
    truth = 1.0 + 0.01 * a * b
    seen = np.arange(12) != 6
    table = fit_grid(a[seen], b[seen], truth[seen], rows, columns)
    np.testing.assert_allclose(table.ravel(), truth, rtol=0.1)
    assert (monotone(-table) == np.sort(np.sort(monotone(-table), 0), 1)).all()


@pytest.mark.parametrize("seed", range(5))
def test_enforced_overlaps_keep_both_rules(seed: int):
    rng = np.random.default_rng(seed)
    prefill = np.sort(np.sort(rng.uniform(1, 100, (4, 6)), 0), 1)
    decode = np.sort(np.sort(rng.uniform(1, 100, (3, 5)), 0), 1)
    table = enforce(rng.uniform(0.3, 1.8, (4, 3, 7)), prefill, decode, SHARE)
    times = lattice_times(table, prefill, decode, SHARE)
    for axis in range(4):
        lower, upper = np.delete(times, -1, axis), np.delete(times, 0, axis)
        assert (upper >= lower * (1 - 1e-3)).all()


@pytest.mark.parametrize("up", [True, False])
def test_one_cell_is_changed_only_where_a_longer_part_would_save_time(up: bool):
    additive = np.ones(7)
    np.testing.assert_allclose(cone(additive, SHARE, up), additive)
    overlapped = cone(np.full(7, 0.2), SHARE, up)
    assert (overlapped[1:-1] >= np.maximum(SHARE, 1 - SHARE)[1:-1]).all()


def test_grids_keep_their_ends_and_rows_that_matter():
    assert size_grid(np.array([16.0, 17, 32, 64, 100])).tolist() == [16, 32, 100]
    table = np.array([[1.0, 2], [2, 4], [3, 6], [9, 18]])
    assert needed_rows(np.array([1.0, 2, 3, 4]), table, 0.01).tolist() == [0, 2, 3]


def test_several_prompts_in_a_chunk_scale_with_the_row_before():
    table = np.array([[1.0, 2, 4], [9.0, 6, 8]])
    filled = fill_short(np.array([16.0, 64]), np.array([8.0, 32, 100]), table)
    assert filled[1].tolist() == [3, 6, 8]
