# SPDX-License-Identifier: Apache-2.0
"""How operator times add up to steps, and that fitted tables give them back."""

from __future__ import annotations

import pytest

from controller.costs.measurements import format_measurements, parse_measurements
from controller.costs.model import TableCost
from experiments.operator_fit import fit_operators
from experiments.operator_steps import (
    LONGEST,
    StepShape,
    as_measurements,
    between_grid,
    chunk_attention_s,
    grid,
    step_s,
)

pytestmark = pytest.mark.unit


class Smooth:
    """Operators of known form: floors at small sizes, linear and quadratic beyond."""

    def dense_s(self, tokens: int) -> float:
        return max(0.01, 4e-5 * tokens)

    def head_s(self, sequences: int) -> float:
        return 1e-4 + 1e-6 * sequences

    def decode_attention_s(self, batch: int, context: int) -> float:
        return 5e-4 + 2e-9 * batch * context

    def prefill_attention_s(self, tokens: int) -> float:
        return 2e-4 + 1e-6 * tokens + 1e-10 * tokens**2


def test_a_step_is_the_sum_of_its_operators() -> None:
    ops = Smooth()
    found = step_s(ops, StepShape(batch=8, context=1000, chunk=512, history=0))
    parts = ops.dense_s(520) + ops.head_s(9) + ops.decode_attention_s(8, 1000)
    assert found == pytest.approx(parts + ops.prefill_attention_s(512))


def test_a_pure_decode_step_has_no_prompt_in_it() -> None:
    ops = Smooth()
    found = step_s(ops, StepShape(8, 1000, 0, 0))
    assert found == ops.dense_s(8) + ops.head_s(8) + ops.decode_attention_s(8, 1000)


def test_context_makes_a_chunk_longer_by_the_difference() -> None:
    ops = Smooth()
    found = chunk_attention_s(ops, 1024, 8192)
    assert found == ops.prefill_attention_s(9216) - ops.prefill_attention_s(8192)


def test_a_chunk_on_context_is_never_below_the_chunk_alone() -> None:
    ops = Smooth()
    assert chunk_attention_s(ops, 16, 16) == ops.prefill_attention_s(16)


@pytest.mark.parametrize("kv_tokens", [40_000, 4_000_000])
@pytest.mark.parametrize("steps", [grid, between_grid])
def test_grids_stay_within_what_was_measured(steps, kv_tokens: int) -> None:
    made = list(steps(kv_tokens))
    assert len(made) == len(set(made))
    for step in made:
        assert step.batch or step.chunk
        assert step.history + step.chunk <= LONGEST
        assert step.batch * step.context <= kv_tokens or step.context <= 192


def test_test_steps_are_not_steps_of_the_fit() -> None:
    assert not set(grid(1e7)) & set(between_grid(1e7))


def test_tables_predict_steps_between_those_of_the_fit() -> None:
    ops = Smooth()
    tables = fit_operators(ops, kv_tokens=2_000_000, budget=8192)
    between = list(between_grid(2_000_000))
    m = as_measurements(between, [step_s(ops, step) for step in between])
    predicted = TableCost(tables).steps_s(m.batch, m.context, m.chunk, m.pairs)
    error = abs(predicted / m.step_s - 1)
    assert error.max() < 0.05
    assert sorted(error)[len(error) // 2] < 0.01


def test_steps_are_written_as_the_table_that_a_profile_is_fitted_from() -> None:
    steps = [StepShape(4, 512, 0, 0), StepShape(0, 0, 256, 1024), StepShape(4, 512, 256, 0)]
    rows = [(s.batch, s.batch * s.context, s.chunk, s.history, 1.5) for s in steps]
    read = parse_measurements(format_measurements(rows), "x.csv")
    made = as_measurements(steps, [1.5e-3] * 3)
    for one, other in zip(
        (read.batch, read.context, read.pairs, read.step_s),
        (made.batch, made.context, made.pairs, made.step_s),
        strict=True,
    ):
        assert one == pytest.approx(other)
