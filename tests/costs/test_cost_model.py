# SPDX-License-Identifier: Apache-2.0
"""The alpha-beta cost model by hand and by property."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.costs.model import AlphaBetaCost

pytestmark = pytest.mark.unit

COSTS = AlphaBetaCost(
    base_s=0.010,
    per_sequence_s=0.001,
    per_context_token_s=0.00001,
    per_prefill_token_s=0.0001,
    per_prefill_pair_s=0.000001,
    max_chunk_tokens=100,
    kv_latency_s=0.002,
    kv_bytes_per_token=1000,
    kv_bandwidth_bytes_s=1_000_000.0,
)
counts = st.integers(0, 10**6)


def test_a_step_is_the_sum_of_its_parts():
    # 10 ms + 3 ms + 5 ms + 2 ms + 1.5 ms
    assert COSTS.step_s(3, 500, 20, 1500.0) == pytest.approx(0.0215)
    assert COSTS.decode_step_s(3, 500) == pytest.approx(0.018)


def test_a_prefill_pays_the_base_once_a_chunk():
    # 250 tokens: 3 chunks; 250 * (40 + 125) pairs
    assert COSTS.prefill_s(40, 250) == pytest.approx(0.030 + 0.025 + 0.04125)
    assert COSTS.prefill_s(40, 100) == pytest.approx(0.010 + 0.010 + 0.009)
    assert COSTS.prefill_s(40, 0) == 0.0


@given(history=st.integers(0, 10**5), increment=st.integers(1, 5000))
def test_a_prefill_is_the_sum_of_its_chunk_steps(history: int, increment: int):
    total, done = 0.0, 0
    while done < increment:
        chunk = min(COSTS.max_chunk_tokens, increment - done)
        total += COSTS.step_s(0, 0, chunk, chunk * (history + done + chunk / 2))
        done += chunk
    assert COSTS.prefill_s(history, increment) == pytest.approx(total)


@given(a=counts, b=counts)
def test_chunk_size_changes_only_the_number_of_bases(a: int, b: int):
    whole = replace(COSTS, max_chunk_tokens=10**7)
    chunks = -(-b // COSTS.max_chunk_tokens)
    extra = (chunks - 1) * COSTS.base_s if b else 0.0
    assert COSTS.prefill_s(a, b) == pytest.approx(whole.prefill_s(a, b) + extra)


@given(batch=counts, context=counts, chunk=counts, more=counts)
def test_more_work_never_takes_less_time(batch: int, context: int, chunk: int, more: int):
    step = COSTS.step_s(batch, context, chunk, float(chunk))
    assert COSTS.step_s(batch + more, context, chunk, float(chunk)) >= step
    assert COSTS.step_s(batch, context + more, chunk, float(chunk)) >= step
    assert COSTS.step_s(batch, context, chunk + more, float(chunk)) >= step
    assert COSTS.step_s(batch, context, chunk, float(chunk + more)) >= step
    assert COSTS.prefill_s(context + more, chunk) >= COSTS.prefill_s(context, chunk)
    assert COSTS.prefill_s(context, chunk + more) >= COSTS.prefill_s(context, chunk)
    assert COSTS.kv_transfer_s(chunk + more) >= COSTS.kv_transfer_s(chunk)


def test_a_transfer_is_latency_and_bytes_and_nothing_for_nothing():
    assert COSTS.kv_transfer_s(10) == pytest.approx(0.002 + 0.010)
    assert COSTS.kv_transfer_s(0) == 0.0
