# SPDX-License-Identifier: Apache-2.0
"""The closed-form steady state of a server at constant concurrency."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.steady_state import Discipline, Load, Server, steady_state
from controller.costs.model import TableCost
from controller.costs.tables import linear_tables

pytestmark = pytest.mark.unit

COST = TableCost(
    linear_tables(
        base_s=0.01,
        per_sequence_s=1e-5,
        per_context_token_s=1e-8,
        per_prefill_token_s=5e-5,
        per_prefill_pair_s=1e-10,
        max_chunk_tokens=8192,
        kv_latency_s=0.0,
        kv_bytes_per_token=1,
        kv_bandwidth_bytes_s=1e9,
    )
)


def server(
    discipline: Discipline = Discipline.INTERLEAVED,
    kv_tokens: int | None = None,
    cost: TableCost = COST,
) -> Server:
    return Server(cost=cost, discipline=discipline, budget=8192, kv_tokens=kv_tokens)


@pytest.mark.parametrize("discipline", Discipline)
def test_a_lone_request_decodes_at_the_step_of_batch_one(discipline: Discipline) -> None:
    load = Load(concurrency=1, isl=1000, osl=200)
    found = steady_state(server(discipline), load)
    assert found.tpot_s == pytest.approx(COST.decode_step_s(1, 1100))
    assert found.running == 1


@pytest.mark.parametrize("discipline", Discipline)
def test_a_lone_request_has_its_first_token_after_its_prefill(discipline: Discipline) -> None:
    found = steady_state(server(discipline), Load(1, isl=1000, osl=200))
    alone = COST.prefill_s(0, 1000)
    # Interleaved prompts wait half a step and share theirs with what decodes.
    assert alone <= found.ttft_s <= alone + COST.decode_step_s(1, 1100)


def test_interleaved_prompts_add_their_marginal_time_to_every_gap() -> None:
    load = Load(concurrency=11, isl=512, osl=1024)
    found = steady_state(server(), load)
    decode = COST.decode_step_s(11, int(11 * load.context))
    # The ten others put ten prompts between a request's 1,024 tokens.
    prompts = 10 * (5e-5 * 512 + 1e-10 * 512 * 256) / 1024
    assert found.tpot_s == pytest.approx(decode + prompts)


def test_waves_see_half_of_the_other_prompts_between_their_tokens() -> None:
    load = Load(concurrency=11, isl=512, osl=1024)
    found = steady_state(server(Discipline.PREFILL_FIRST), load)
    prefill = COST.prefill_s(0, 512)
    decode = COST.decode_step_s(11, int(11 * load.context))
    assert found.tpot_s == pytest.approx(decode + 5 * prefill / 1024)
    assert found.ttft_s == pytest.approx(6 * prefill)


@pytest.mark.parametrize("discipline", Discipline)
def test_requests_beyond_the_kv_cache_wait_and_do_not_slow_decoding(
    discipline: Discipline,
) -> None:
    few, many = (
        steady_state(server(discipline, kv_tokens=11000), Load(n, isl=1000, osl=200))
        for n in (10, 40)
    )
    assert many.running == pytest.approx(10)
    assert many.tpot_s == pytest.approx(few.tpot_s)
    # Little: thirty more requests wait for three more lives of the ten that run.
    assert many.ttft_s - few.ttft_s == pytest.approx(3 * (few.ttft_s + 200 * few.tpot_s))


def test_more_prompt_tokens_than_the_budget_lower_what_decodes() -> None:
    found = steady_state(server(), Load(concurrency=256, isl=8192, osl=64))
    assert found.running < 128
    assert found.running * 8192 / 64 <= 8192


def test_a_benchmarks_first_round_waits_for_half_of_its_prompts() -> None:
    steady = steady_state(server(), Load(21, isl=512, osl=1024))
    short = steady_state(server(), Load(21, isl=512, osl=1024, rounds=4))
    assert short.tpot_s == steady.tpot_s
    assert short.ttft_s - steady.ttft_s == pytest.approx(10 * COST.prefill_s(0, 512) / 4)


@given(
    concurrency=st.integers(1, 256),
    isl=st.integers(16, 8192),
    osl=st.integers(16, 8192),
    discipline=st.sampled_from(Discipline),
)
def test_one_more_request_never_makes_gaps_shorter(
    concurrency: int, isl: int, osl: int, discipline: Discipline
) -> None:
    # Unlimited KV and a budget that is not reached: more requests only add work.
    free = Server(COST, discipline, budget=10**9, kv_tokens=None)
    fewer = steady_state(free, Load(concurrency, isl, osl))
    more = steady_state(free, Load(concurrency + 1, isl, osl))
    assert more.tpot_s >= fewer.tpot_s * (1 - 1e-9)
    assert fewer.tpot_s > 0 and fewer.ttft_s > 0
