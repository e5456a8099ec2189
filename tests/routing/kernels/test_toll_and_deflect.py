# SPDX-License-Identifier: Apache-2.0
"""Toll, deflection and Dynamo's rules, with the arithmetic in the tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.costs.tables import linear_tables
from controller.routing.kernels import deflect
from controller.routing.kernels.dynamo import cheapest, kv_cost, stays_local
from controller.routing.kernels.reasons import LOCAL, TOLL_LOCAL, TOLL_REMOTE
from controller.routing.kernels.toll import HURRY, bearable_chunk, toll

pytestmark = pytest.mark.unit

# step = 10 ms + 1 ms a decode + 0.01 ms a context token + 0.1 ms a prompt token.
TABLES = linear_tables(
    base_s=0.010,
    per_sequence_s=0.001,
    per_context_token_s=1e-5,
    per_prefill_token_s=1e-4,
    per_prefill_pair_s=0.0,
    max_chunk_tokens=2048,
    kv_latency_s=0.0,
    kv_bytes_per_token=1,
    kv_bandwidth_bytes_s=1e9,
)


def test_the_place_with_the_fewest_expected_misses_wins():
    misses, ttft_s = np.array([0.4, 0.1]), np.array([0.2, 1.0])
    # 0.4 + 0.05*0.2 = 0.41, 0.1 + 0.05*1.0 = 0.15; local 0.3 + 0.05*0.1 = 0.305.
    assert toll(misses, ttft_s, 0.3, 0.1, 1.0) == (1, TOLL_REMOTE)
    assert toll(misses, ttft_s, 0.1, 0.1, 1.0) == (LOCAL, TOLL_LOCAL)


def test_among_equal_prices_the_sooner_one_wins():
    assert toll(np.zeros(2), np.array([0.5, 0.4]), 0.0, 0.6, 1.0) == (1, TOLL_REMOTE)
    assert toll(np.zeros(2), np.array([0.5, 0.4]), 0.0, 0.4, 1.0) == (LOCAL, TOLL_LOCAL)


def test_no_local_choice_is_nan():
    assert toll(np.array([1.0]), np.array([9.0]), 0.0, math.nan, 1.0) == (0, TOLL_REMOTE)


def test_hurry_never_outweighs_a_certain_miss():
    assert HURRY < 0.5


def test_the_chunk_shrinks_until_the_batch_bears_it():
    # Batch 10, context 1000: 10 + 10 + 10 = 30 ms; chunks of 256, 128, 64: 55.6, 42.8, 36.4 ms.
    def chunk(limit_s, beside=0.0, budget=2048.0):
        return bearable_chunk(TABLES, 10.0, 1000.0, 4000.0, beside, 256.0, budget, limit_s)

    assert [chunk(x) for x in (0.056, 0.055, 0.042, 0.036)] == [256, 128, 64, 0]
    # Another local prefill doubles what a step may hold: 2 * 128 takes as long as 256.
    assert [chunk(x, 1.0) for x in (0.0813, 0.056, 0.043)] == [256, 128, 64]
    # But the engine puts no more than its budget of 266 into a step with 10 decodes.
    assert [chunk(x, 9.0, 266.0) for x in (0.056, 0.0555)] == [256, 0]


def test_a_short_prompt_is_its_own_chunk():
    # 20 tokens: 30 + 2 = 32 ms.
    assert bearable_chunk(TABLES, 10.0, 1000.0, 20.0, 0.0, 256.0, 2048.0, 0.032) == 256


def schedule(prompt, batch, context, limit_s, most=2048.0):
    counts = np.zeros(deflect.SIZES, np.int64)
    args = (TABLES, float(batch), float(context), float(prompt), most, limit_s, counts)
    return deflect.largest_safe(*args), list(counts)


def test_the_largest_safe_chunks():
    # No context: 10 + 1 + 0.01*done + 0.1*chunk ms. 1024: 113.4 ms; 512: 62.2; 256: 36.6.
    # Limit 63 ms, prompt 1000: 512 (62.2 at done 0); then base 11 + 5.12, left 488: 64.92 > 63,
    # so 256 (41.72); then base 18.68, the rest of 232: 41.88, with size 256.
    total_s, counts = schedule(1000, 1, 0, 0.063)
    assert counts == [0, 0, 1, 2, 0]
    assert total_s == pytest.approx(0.0622 + 0.04172 + 0.04188)


def test_the_whole_prompt_must_fit_the_limit():
    # 128 tokens: 11 + 12.8 = 23.8 ms; with the context grown by 128 it is 25.08: over 24.
    assert schedule(129, 1, 0, 0.024)[0] < math.inf  # the last token alone is 12.38
    assert schedule(256, 1, 0, 0.024)[0] == math.inf


def test_sizes_above_the_budget_are_left_out():
    assert schedule(1000, 1, 0, 9.0, 600.0)[1] == [0, 0, 2, 0, 0]
    assert schedule(1000, 1, 0, 9.0)[1] == [1, 0, 0, 0, 0]


def test_the_prefill_path_counts_what_is_ahead_without_rounding():
    # chi = min(512, 700) = 512; t_pf(512) = 10 + 51.2 = 61.2 ms; S = 768: 1.5 of them;
    # own: 512 and 188: 61.2 + 28.8 ms.
    assert deflect.prefill_path_s(TABLES, 768.0, 700.0, 512.0) == pytest.approx(
        1.5 * 0.0612 + 0.0612 + 0.0288
    )


def test_the_deflection_rule():
    assert deflect.deflects(1.29, 1.0, 1.5, 1.3)
    assert not deflect.deflects(1.31, 1.0, 1.5, 1.3)  # alpha
    assert not deflect.deflects(1.6, 9.0, 1.5, 1.3)  # TTFT limit


def test_the_fastest_decode_worker_without_a_deflected_prefill():
    # 100 tokens: 20 ms + 1 ms a decode. Worker 0 has a deflected prefill, 2 the smaller batch.
    def best(busy, only=-1, limit_s=1.0):
        counts = np.zeros(2 * deflect.SIZES, np.int64)
        batch, none = np.array([1, 9, 4]), np.zeros(3, np.int64)
        busy, budget = np.array(busy), np.full(3, 2048)
        args = (TABLES, batch, none, busy, budget, only, 100.0, limit_s, counts)
        return deflect.best_decode(*args)

    assert best([1, 0, 0]) == (2, pytest.approx(0.024))
    assert best([0, 0, 0])[0] == 0
    assert best([0, 0, 0], only=1)[0] == 1
    assert best([0, 0, 0], limit_s=0.02) == (-1, math.inf)


@given(
    st.integers(1, 9000),
    st.integers(1, 60),
    st.integers(0, 4000),
    st.floats(0.02, 0.4),
)
def test_a_schedule_covers_the_prompt_and_keeps_the_limit_in_every_step(p, batch, context, limit):
    total_s, counts = schedule(p, batch, context, limit)
    if total_s == math.inf:
        return
    chunks = [2048 >> k for k, n in enumerate(counts) for _ in range(n)]
    assert sum(chunks[:-1]) < p <= sum(chunks)
    done, again_s = 0, 0.0
    for chunk in chunks:
        now = min(chunk, p - done)
        step_s = 0.010 + 0.001 * batch + 1e-5 * (context + done) + 1e-4 * now
        assert step_s <= limit + 1e-12
        again_s, done = again_s + step_s, done + now
    assert total_s == pytest.approx(again_s)


def test_dynamos_cost_in_blocks():
    # 100 blocks, 30 of them cached there, 5 active: 75. A full hit costs its load alone.
    assert kv_cost(100.0, 30.0, 5.0) == 75.0
    assert kv_cost(10.0, 12.0, 5.0) == 5.0
    assert cheapest(np.array([75.0, 74.0, 74.0]), 0.0, 0.0) == 1


def test_dynamos_temperature_draws_by_softmax_of_scaled_costs():
    # Costs 0 and 10 at temperature 1: weights 1 and e**-1, so 0.731 for the first.
    cost = np.array([5.0, 15.0])
    assert cheapest(cost, 1.0, 0.73) == 0
    assert cheapest(cost, 1.0, 0.74) == 1


def test_dynamos_condition_is_strict_and_never_takes_a_cold_prompt():
    assert stays_local(3000.0, 1500.0, 2048.0, 0.7)
    assert not stays_local(3000.0, 900.0, 2048.0, 0.7)  # lacks 2100
    assert not stays_local(2000.0, 600.0, 2048.0, 0.7)  # 1400 is not below 0.7 * 2000
    assert not stays_local(10.0, 0.0, 2048.0, 1.0)
