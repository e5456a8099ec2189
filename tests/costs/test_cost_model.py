# SPDX-License-Identifier: Apache-2.0
"""The cost model by hand and by property: one linear piece, then tables with every feature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.costs import kernels
from controller.costs.checks import problem
from controller.costs.model import TableCost
from controller.costs.tables import (
    EMITTED,
    PAD_MIXED,
    VERIFIED,
    StepTables,
    default_options,
    linear_tables,
    transfer_vector,
    vector,
)

pytestmark = pytest.mark.unit

LINEAR = {
    "base_s": 0.010,
    "per_sequence_s": 0.001,
    "per_context_token_s": 0.00001,
    "per_prefill_token_s": 0.0001,
    "per_prefill_pair_s": 0.000001,
    "max_chunk_tokens": 100,
    "kv_latency_s": 0.002,
    "kv_bytes_per_token": 1000,
    "kv_bandwidth_bytes_s": 1_000_000.0,
}
COSTS = TableCost(linear_tables(**LINEAR))
counts = st.integers(0, 10**6)


def rich_tables(**changes: object) -> StepTables:
    """Every feature at once: breakpoints, heads, graphs, mixed steps that overlap."""
    fields: dict[str, object] = {
        "dense_tokens": vector([1, 64, 512]),
        "dense_s": vector([0.010, 0.011, 0.040]),
        "sequences": vector([1, 100]),
        "sequence_s": vector([0.001, 0.002]),
        "batch": vector([1, 4, 16]),
        "context": vector([16, 1024, 8192]),
        "decode_s": vector([1, 1, 4, 1, 3, 20, 2, 10, 80]) * 1e-3,
        "chunk": vector([16, 128, 512]),
        "attended": vector([8, 256, 8192]),
        "prefill_s": vector([1, 1, 9, 1, 2, 10, 2, 5, 40]) * 1e-3,
        "mixed_batch": vector([1, 16]),
        "mixed_context": vector([16, 8192]),
        "mixed_decode_s": vector([1, 9, 3, 90]) * 1e-3,
        "mixed_chunk": vector([16, 512]),
        "mixed_share": vector([0, 0.5, 1]),
        "overlap": vector([1, 0.5, 1, 1, 0.9, 1, 1, 0.8, 1, 1, 1.3, 1]),
        "capture_sizes": vector([1, 2, 4, 8]),
        "transfer": transfer_vector(0.001, 1000.0, 1e6),
        "limits": vector([16, 8192, 512, 8192]),
        "options": default_options(512),
    }
    return StepTables(**{**fields, **changes})  # type: ignore[arg-type]


RICH = TableCost(rich_tables())


def test_a_step_is_the_sum_of_its_parts():
    # 10 ms + 3 ms + 5 ms + 2 ms + 1.5 ms
    assert COSTS.step_s(3, 500, 20, 1500.0) == pytest.approx(0.0215)
    assert COSTS.decode_step_s(3, 500) == pytest.approx(0.018)
    assert COSTS.mixed_step_s(3, 500, 20, 65) == pytest.approx(0.0215)


def test_a_prefill_pays_the_base_once_a_chunk():
    # 250 tokens: 3 chunks; 250 * (40 + 125) pairs
    assert COSTS.prefill_s(40, 250) == pytest.approx(0.030 + 0.025 + 0.04125)
    assert COSTS.prefill_s(40, 100) == pytest.approx(0.010 + 0.010 + 0.009)
    assert COSTS.prefill_s(40, 0) == 0.0


@pytest.mark.parametrize("cost", [COSTS, RICH])
@given(history=st.integers(0, 10**5), increment=st.integers(1, 5000))
def test_a_prefill_is_the_sum_of_its_chunk_steps(cost: TableCost, history: int, increment: int):
    total, done = 0.0, 0
    while done < increment:
        chunk = min(cost.max_chunk_tokens, increment - done)
        total += cost.step_s(0, 0, chunk, chunk * (history + done + chunk / 2))
        done += chunk
    assert cost.prefill_s(history, increment) == pytest.approx(total)


@given(a=counts, b=counts)
def test_chunk_size_changes_only_the_number_of_bases(a: int, b: int):
    whole = TableCost(linear_tables(**{**LINEAR, "max_chunk_tokens": 10**7}))
    chunks = -(-b // COSTS.max_chunk_tokens)
    extra = (chunks - 1) * LINEAR["base_s"] if b else 0.0
    assert COSTS.prefill_s(a, b) == pytest.approx(whole.prefill_s(a, b) + extra)


@given(batch=counts, context=counts, chunk=counts, more=counts)
def test_more_work_never_takes_less_time(batch: int, context: int, chunk: int, more: int):
    least = COSTS.step_s(batch, context, chunk, float(chunk)) * (1 - 1e-12)
    assert COSTS.step_s(batch + more, context, chunk, float(chunk)) >= least
    assert COSTS.step_s(batch, context + more, chunk, float(chunk)) >= least
    assert COSTS.step_s(batch, context, chunk + more, float(chunk)) >= least
    assert COSTS.step_s(batch, context, chunk, float(chunk + more)) >= least
    assert COSTS.kv_transfer_s(chunk + more) >= COSTS.kv_transfer_s(chunk)


def test_a_transfer_is_latency_and_bytes_and_nothing_for_nothing():
    assert COSTS.kv_transfer_s(10) == pytest.approx(0.002 + 0.010)
    assert COSTS.kv_transfer_s(0) == 0.0


def test_the_tables_of_these_tests_keep_the_rules():
    assert problem(RICH.tables) is None
    assert problem(COSTS.tables) is None


@settings(max_examples=300)
@given(
    batch=st.integers(0, 64),
    size=st.floats(0, 40000),
    chunk=st.integers(0, 2000),
    attended=st.floats(0, 40000),
    more=st.floats(0, 5000),
    step=st.integers(1, 100),
)
def test_tables_are_monotone_and_finite_everywhere(
    batch: int, size: float, chunk: int, attended: float, more: float, step: int
):
    def at(b: int, k: float, x: int, z: float) -> float:
        return RICH.step_s(b, b * k, x, x * z)

    now = at(batch, size, chunk, attended)
    assert math.isfinite(now) and now >= 0.010
    least = now * (1 - 1e-12)
    assert at(batch, size + more, chunk, attended) >= least
    assert at(batch, size, chunk, attended + more) >= least
    assert at(batch + step, size, chunk, attended) >= least
    assert at(batch, size, chunk + step, attended) >= least


@given(batch=st.integers(1, 64), size=st.floats(0, 40000), part=st.floats(0, 1))
def test_a_decode_line_is_the_step_until_it_says(batch: int, size: float, part: float):
    context = batch * size
    a, c, until = kernels.decode_line(RICH.tables, float(batch), context)
    assert until >= context and c >= 0.0
    there = context + part * (min(until, context + 1e6) - context)
    assert a + c * there == pytest.approx(RICH.decode_step_s(batch, there), rel=1e-9)


@pytest.mark.parametrize(("batch", "tokens"), [(3, 4), (4, 4), (5, 8), (9, 9)])
def test_pure_decodes_are_padded_to_a_capture_size(batch: int, tokens: int):
    bare = TableCost(rich_tables(capture_sizes=vector([])))
    extra = np.interp(tokens, [1, 64], [0.010, 0.011]) - np.interp(batch, [1, 64], [0.010, 0.011])
    assert RICH.decode_step_s(batch, 160) - bare.decode_step_s(batch, 160) == pytest.approx(extra)


def test_mixed_steps_are_padded_only_where_the_engine_does():
    options = default_options(512)
    options[PAD_MIXED] = 1.0
    padded = TableCost(rich_tables(options=options))
    assert padded.mixed_step_s(2, 32, 3, 0) > RICH.mixed_step_s(2, 32, 3, 0)


def test_speculation_computes_more_tokens_and_emits_some_of_them():
    options = default_options(512)
    options[VERIFIED], options[EMITTED] = 4.0, 2.5
    fast = TableCost(rich_tables(options=options, capture_sizes=vector([])))
    slow = TableCost(rich_tables(capture_sizes=vector([])))
    assert fast.tokens_per_step == 2.5
    assert slow.tokens_per_step == 1.0
    extra = np.interp(32, [1, 64], [0.010, 0.011]) - np.interp(8, [1, 64], [0.010, 0.011])
    assert fast.decode_step_s(8, 800) - slow.decode_step_s(8, 800) == pytest.approx(extra)


def test_a_mixed_step_overlaps_its_parts_and_is_not_below_either():
    # chunk 16 and batch 1 on their grid rows: P = 9 ms, D = 9 ms, share 1/2, overlap 0.5
    attention = RICH.step_s(1, 8192, 16, 16 * 8192.0) - kernels.shared_s(RICH.tables, 1.0, 16.0)
    assert attention == pytest.approx(0.009)
    # chunk 512 and batch 16: P = 40, D = 90, share 9/13, overlap between 1.3 and 1
    share = 9 / 13
    ratio = 1.3 + (1.0 - 1.3) * (share - 0.5) / 0.5
    attention = RICH.step_s(16, 16 * 8192, 512, 512 * 8192.0)
    attention -= kernels.shared_s(RICH.tables, 16.0, 512.0)
    assert attention == pytest.approx(0.130 * ratio)


def test_extrapolation_is_flagged_outside_the_measured_range_only():
    assert not RICH.extrapolates(16, 16 * 8192, 512, 512 * 8192.0)
    assert RICH.extrapolates(17, 17, 0, 0.0)
    assert RICH.extrapolates(1, 8193, 0, 0.0)
    assert RICH.extrapolates(0, 0, 513, 1.0)
    assert RICH.extrapolates(0, 0, 16, 16 * 8193.0)
    assert not COSTS.extrapolates(10**6, 10**9, 10**6, 1e15)


def test_arrays_give_what_single_calls_give_and_keep_their_shape():
    batch, chunk = np.array([[0, 1, 5], [16, 3, 40]]), np.array([16, 0, 700])
    many = RICH.steps_s(batch, batch * 100, chunk, chunk * 50.0)
    assert many.shape == (2, 3)
    for index in np.ndindex(2, 3):
        b, x = int(batch[index]), int(chunk[index[1]])
        assert many[index] == RICH.step_s(b, b * 100, x, x * 50.0)


@given(slowdown=st.floats(0.1, 10))
def test_a_slowdown_multiplies_computing_and_not_transfers(slowdown: float):
    slow = RICH.scaled(slowdown)
    for shape in ((3, 500, 0, 0.0), (0, 0, 100, 5e4), (5, 5000, 200, 1e5)):
        assert slow.step_s(*shape) == pytest.approx(slowdown * RICH.step_s(*shape))
    assert slow.kv_transfer_s(7) == RICH.kv_transfer_s(7)
