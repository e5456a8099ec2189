# SPDX-License-Identifier: Apache-2.0
"""Batch dynamics of an AFD run: who joins, who waits, who is preempted or rejected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.costs.tables import linear_tables
from controller.simulation.afd.costs import AfdCosts, AfdLaw
from controller.simulation.afd.pool import AfdError, AfdPool
from controller.simulation.afd.run import AfdRun, Prefill, simulate_afd
from controller.simulation.lengths import Lengths
from controller.simulation.workloads.clients import Client, client_load
from controller.simulation.workloads.closed_loop import closed_loop
from controller.simulation.workloads.rows import conversations, single_rounds
from controller.simulation.workloads.workload import Workload

pytestmark = pytest.mark.unit


def costs(kv_tokens: int = 1000, context_token_s: float = 0.0) -> AfdCosts:
    """Two layers; attention takes 2 s a layer, the FFN 3 s, the head 1 s; links nothing."""
    law = AfdLaw(
        attention=linear_tables(2.0, 0.0, context_token_s, 0.0, 0.0, 1, 0.0, 1.0, 1.0),
        ffn_tokens=np.array([1.0]),
        ffn_s=np.array([3.0]),
        head_sequences=np.array([1.0]),
        head_s=np.array([1.0]),
        link_latency_s=0.0,
        link_token_s=0.0,
        ffn_link_token_s=0.0,
    )
    return AfdCosts(law=law, layers=2, kv_tokens=kv_tokens)


AT_ONCE = Prefill(base_s=0.0, per_token_s=0.0)
ALONE_STEP_S = 2 * (2 + 3) + 1


def requests(*rows: tuple[float, int, int]) -> Workload:
    """(arrival, prompt, output) each."""
    arrival, prompt, output = zip(*rows, strict=True)
    return single_rounds("t", np.array(arrival), np.array(prompt), np.array(output))


def serve(workload: Workload, pool: AfdPool, **changes: float) -> AfdRun:
    return simulate_afd(workload, costs(**changes), pool, AT_ONCE)


def test_a_lone_request_pays_every_layer_for_every_token_but_the_first() -> None:
    run = serve(requests((5.0, 100, 4)), AfdPool(1, 1))
    assert run.ready_s.tolist() == [5.0]
    assert run.finish_s.tolist() == [5.0 + 3 * ALONE_STEP_S]
    assert run.tpot_s.tolist() == [ALONE_STEP_S]
    assert run.round_tokens.tolist() == [1, 1, 1]


def test_attention_pays_for_the_context_as_it_grows() -> None:
    run = serve(requests((0.0, 100, 4)), AfdPool(1, 1), context_token_s=0.01)
    growing = 2 * 0.01 * (101 + 102 + 103)
    assert run.finish_s[0] == pytest.approx(3 * ALONE_STEP_S + growing)


def test_one_token_answers_end_with_their_prefill() -> None:
    prefill = Prefill(base_s=1.0, per_token_s=0.01)
    run = simulate_afd(requests((2.0, 100, 1)), costs(), AfdPool(1, 1), prefill)
    assert run.finish_s.tolist() == [4.0]
    assert len(run.round_end_s) == 0
    assert np.isnan(run.tpot_s).all()


def test_two_micro_batches_overlap() -> None:
    """Both steps are hidden behind the FFN: 3 s a layer and micro-batch instead of 5 s."""
    pair = requests((0.0, 10, 101), (0.0, 10, 101))
    together = serve(pair, AfdPool(1, 1, micro_batches=1), kv_tokens=10_000)
    split = serve(pair, AfdPool(1, 1, micro_batches=2), kv_tokens=10_000)
    assert together.finish_s.max() == 100 * ALONE_STEP_S
    assert ALONE_STEP_S * 100 < split.finish_s.max() < 2 * 100 * ALONE_STEP_S * 0.75


def test_a_request_that_is_ready_in_mid_step_joins_at_the_next_turn() -> None:
    run = serve(requests((0.0, 10, 5), (1.0, 10, 2)), AfdPool(1, 1, micro_batches=1))
    assert run.joined_s.tolist() == [0.0, ALONE_STEP_S]
    assert run.finish_s.tolist() == [4 * ALONE_STEP_S, 2 * ALONE_STEP_S]


def test_the_pool_sleeps_while_nobody_is_there() -> None:
    run = serve(requests((0.0, 10, 2), (500.0, 10, 2)), AfdPool(2, 1))
    assert run.finish_s.tolist() == [ALONE_STEP_S, 500 + ALONE_STEP_S]


def test_kv_bounds_how_many_run_at_once_and_the_rest_wait_in_order() -> None:
    many = requests(*[(0.0, 390, 11)] * 6)
    run = serve(many, AfdPool(1, 1, micro_batches=1))
    assert run.round_tokens.max() == 2
    assert (np.diff(run.joined_s) >= 0).all()
    assert np.isfinite(run.finish_s).all()
    both = serve(many, AfdPool(2, 1, micro_batches=1))
    assert both.round_tokens.max() == 4
    assert both.finish_s.max() < run.finish_s.max()


def test_the_youngest_is_preempted_and_comes_back_with_its_recomputed_kv() -> None:
    pair = requests((0.0, 400, 201), (0.0, 400, 201))
    run = simulate_afd(pair, costs(), AfdPool(1, 1, micro_batches=1), Prefill(0.0, 1e-3))
    assert run.preemptions.tolist() == [0, 1]
    assert run.finish_s[0] == pytest.approx(0.4 + 200 * ALONE_STEP_S)
    # 100 tokens each fill the KV; the younger waits for the elder's end and makes the other 100.
    assert run.finish_s[1] == pytest.approx(run.finish_s[0] + 100 * ALONE_STEP_S)
    assert run.round_tokens.sum() == 400


def test_what_can_never_fit_is_rejected_with_the_rest_of_its_conversation() -> None:
    w = conversations(
        "t",
        np.array([0.0, 1.0]),
        np.array([3, 1]),
        np.array([10, 990, 5, 10]),
        np.array([5, 5, 5, 5]),
        np.zeros(4),
    )
    run = serve(w, AfdPool(1, 1))
    assert run.rejected.tolist() == [0, 1, 1, 0]
    assert np.isnan(run.finish_s).tolist() == [False, True, True, False]


def test_a_client_whose_request_was_rejected_sends_the_next() -> None:
    w = closed_loop(1, 3, 0, think_s=2.0)
    w = replace(w, prompt_tokens=np.array([128, 5000, 128]), output_tokens=np.array([2, 2, 2]))
    run = serve(w, AfdPool(1, 1))
    assert run.rejected.tolist() == [0, 1, 0]
    assert run.ready_s[2] == run.finish_s[0] + 2.0 + 2.0


def test_later_rounds_start_after_the_answer_and_the_pause() -> None:
    w = conversations(
        "t",
        np.array([1.0]),
        np.array([2]),
        np.array([50, 20]),
        np.array([3, 2]),
        np.array([0.0, 7.0]),
    )
    run = simulate_afd(w, costs(), AfdPool(1, 1), Prefill(0.0, 0.1))
    first = 1 + 5 + 2 * ALONE_STEP_S
    assert run.finish_s.tolist() == pytest.approx([first, first + 7 + 2 + ALONE_STEP_S])


def test_a_time_limit_ends_the_run_after_a_whole_round() -> None:
    run = simulate_afd(requests((0.0, 10, 100)), costs(), AfdPool(1, 1), AT_ONCE, limit_s=30.0)
    assert run.round_end_s.tolist() == [11, 22, 33]
    assert np.isnan(run.finish_s).all()
    with pytest.raises(AfdError, match="no two decode rounds end between 40 and 50 s"):
        run.window(40.0, 50.0)


def test_a_window_counts_tokens_and_busy_time() -> None:
    run = serve(requests((0.0, 10, 11)), AfdPool(1, 1, micro_batches=1))
    window = run.window(0.0, 1e9)
    assert window.step_s == ALONE_STEP_S
    assert window.tokens_per_s == pytest.approx(1 / ALONE_STEP_S)
    assert window.sequences == 1
    assert window.attention_busy == pytest.approx((2 * 2 + 1) / ALONE_STEP_S)
    assert window.ffn_busy == pytest.approx(2 * 3 / ALONE_STEP_S)
    assert window.link_busy == 0


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(300, 1500),
    st.integers(0, 10_000),
)
def test_every_token_is_made_once_whatever_happens(
    attention: int, ffn: int, micro_batches: int, most: int, kv_tokens: int, seed: int
) -> None:
    clients = [Client(0.2, Lengths(120, 1.0, 1, 900), Lengths(30, 1.2, 1, 400), cv=2.0)]
    w = client_load(clients, 200.0, seed) if seed % 2 else closed_loop(5, 30, seed)
    pool = AfdPool(
        attention, ffn, micro_batches=micro_batches, max_sequences=max(most, micro_batches)
    )
    run = simulate_afd(w, costs(kv_tokens), pool, AT_ONCE)
    served = run.rejected == 0
    assert np.array_equal(served, w.prompt_tokens + w.output_tokens <= kv_tokens)
    assert np.isfinite(run.finish_s[served]).all()
    assert run.round_tokens.sum() == (w.output_tokens - 1)[served].sum()
    assert run.round_tokens.max(initial=0) <= attention * pool.max_sequences
    waited = served & (w.output_tokens > 1)
    assert (run.joined_s[waited] >= run.ready_s[waited]).all()
    assert (run.finish_s[waited] > run.joined_s[waited]).all()


def test_the_same_run_twice_is_the_same_run() -> None:
    w = client_load([Client(0.2, Lengths(120, 1.0, 1, 900), Lengths(30, 1.2, 1, 400))], 300.0, 3)
    one, two = (serve(w, AfdPool(2, 2), kv_tokens=2000) for _ in range(2))
    assert np.array_equal(one.finish_s, two.finish_s, equal_nan=True)
    assert np.array_equal(one.round_busy_s, two.round_busy_s)
