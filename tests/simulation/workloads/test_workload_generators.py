# SPDX-License-Identifier: Apache-2.0
"""What each drawn workload promises: averages, sharing, concurrency, seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.simulation.lengths import Lengths, constant
from controller.simulation.traces import TraceError
from controller.simulation.workloads.agents import AgentTrace, agent_sessions
from controller.simulation.workloads.clients import Client, client_load, draw_clients
from controller.simulation.workloads.closed_loop import closed_loop
from controller.simulation.workloads.reasoning import ReasoningLaw, reasoning_sessions
from controller.simulation.workloads.rollouts import rollouts
from controller.simulation.workloads.workload import Workload, engine_block_ids

pytestmark = pytest.mark.unit

SHORT = Lengths(100, 0.5, 1, 10_000)
DRAWN: dict[str, Callable[[int], Workload]] = {
    "agents": lambda seed: agent_sessions(AgentTrace.TOOLBENCH, 2.0, 20.0, seed),
    "clients": lambda seed: client_load([Client(3.0, SHORT, SHORT, cv=2.0)], 20.0, seed),
    "closed loop": lambda seed: closed_loop(4, 40, seed, output=SHORT),
    "reasoning": lambda seed: reasoning_sessions(ReasoningLaw(), 1.0, 20.0, seed),
    "rollouts": lambda seed: rollouts(5, 4, seed),
}
COLUMNS = ("arrival_s", "think_s", "prompt_tokens", "output_tokens", "block_ids")


def same(a: Workload, b: Workload) -> bool:
    return all(np.array_equal(getattr(a, c), getattr(b, c), equal_nan=True) for c in COLUMNS)


@pytest.mark.parametrize("kind", DRAWN)
def test_a_seed_decides_everything(kind: str) -> None:
    assert same(DRAWN[kind](7), DRAWN[kind](7))
    assert not same(DRAWN[kind](7), DRAWN[kind](8))


AMPD_TABLE_1 = {
    AgentTrace.TOOLBENCH: (3.96, 703.79, 50.39),
    AgentTrace.GAIA: (11.32, 6161.02, 528.76),
    AgentTrace.HOTPOTQA: (3, 1569.8, 80.03),
    AgentTrace.DUREADER: (3, 3081.23, 150.10),
}


@pytest.mark.parametrize("trace", AgentTrace, ids=lambda trace: trace.name)
def test_agent_sessions_have_the_published_averages(trace: AgentTrace) -> None:
    w = agent_sessions(trace, 2.0, 3_000.0, seed=4)
    rounds, prefill, decode = AMPD_TABLE_1[trace]
    sessions = int(w.session.max()) + 1
    assert len(w) / sessions == pytest.approx(rounds, rel=0.02)
    assert w.new_tokens.mean() == pytest.approx(prefill, rel=0.02)
    assert w.output_tokens.mean() == pytest.approx(decode, rel=0.02)
    assert sessions / 3_000 == pytest.approx(2.0, rel=0.05)


def test_agent_histories_grow_and_pauses_average_to_the_tools() -> None:
    w = agent_sessions(AgentTrace.DUREADER, 2.0, 1_000.0, seed=4)
    last = w.prompt_tokens[w.round == 2].mean()
    assert last == pytest.approx(3 * 3081 + 2 * 150, rel=0.05)
    assert w.think_s[w.after >= 0].mean() == pytest.approx(0.5, rel=0.1)


def test_agent_sessions_can_share_a_head() -> None:
    w = agent_sessions(AgentTrace.TOOLBENCH, 2.0, 30.0, seed=4, shared_tokens=500)
    heads = [engine_block_ids(w, row, 16)[:31].tolist() for row in range(len(w))]
    assert all(head == heads[0] for head in heads)
    assert min(heads[0]) >= 0
    first = w.prompt_tokens[w.round == 0]
    assert first.min() > 500


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 9))
def test_a_closed_loop_never_has_more_in_the_system(
    concurrency: int, requests: int, seed: int
) -> None:
    w = closed_loop(concurrency, requests, seed, output=SHORT, think_s=0.1)
    start, end = np.zeros(requests), np.zeros(requests)
    for row in range(requests):
        before = int(w.after[row])
        start[row] = end[before] + w.think_s[row] if before >= 0 else w.arrival_s[row]
        end[row] = start[row] + w.output_tokens[row] / 100
    running = [int(((start <= at) & (at < end)).sum()) for at in start]
    assert max(running) <= concurrency
    assert running[0] == min(concurrency, requests)


def test_a_closed_loop_repeats_its_templates_and_nothing_else() -> None:
    w = closed_loop(8, 200, seed=1)
    prompts = {tuple(engine_block_ids(w, row, 16).tolist()) for row in range(200)}
    assert len(prompts) == 5
    assert set(w.prompt_tokens.tolist()) == {128}
    assert set(w.output_tokens.tolist()) == {128}
    assert (w.history_tokens == 0).all()


def test_thinking_is_long_and_the_answer_comes_last() -> None:
    law = ReasoningLaw(thinking=constant(1000), answer=constant(50), tool_calls_mean=1.5)
    w = reasoning_sessions(law, 2.0, 2_000.0, seed=3)
    last = w.followers < 0
    assert set(w.output_tokens[last].tolist()) == {1050}
    assert set(w.output_tokens[~last].tolist()) == {1000}
    sessions = int(w.session.max()) + 1
    assert len(w) / sessions == pytest.approx(2.5, rel=0.05)
    assert w.output_tokens.sum() > w.new_tokens.sum()


def test_rollouts_are_one_batch_with_a_long_tail_cut_at_the_limit() -> None:
    w = rollouts(400, 8, seed=2)
    assert (w.arrival_s == 0).all()
    tokens = np.sort(w.output_tokens)
    assert tokens[-1] == 32_768
    assert tokens[-1] > 5 * tokens.mean()
    assert tokens[-len(tokens) // 10 :].sum() > 0.3 * tokens.sum()


def test_samples_of_a_prompt_share_it_and_other_prompts_do_not() -> None:
    w = rollouts(3, 4, seed=2)
    blocks = [tuple(engine_block_ids(w, row, 16).tolist()) for row in range(12)]
    assert len(set(blocks)) == 3
    assert len({block for prompt in set(blocks) for block in prompt}) == sum(
        len(prompt) for prompt in set(blocks)
    )


def test_clients_keep_their_own_rate_lengths_and_burstiness() -> None:
    calm = Client(4.0, Lengths(100, 0.3, 1, 1000), constant(10), cv=1.0)
    wild = Client(1.0, Lengths(900, 0.3, 1, 9000), constant(20), cv=4.0)
    w = client_load([calm, wild], 20_000.0, seed=6)
    for number, (rate, prompt, cv) in enumerate([(4.0, 100, 1.0), (1.0, 900, 4.0)]):
        mine = w.tenant == number
        gaps = np.diff(w.arrival_s[mine])
        assert mine.sum() / 20_000 == pytest.approx(rate, rel=0.07)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.07)
        assert w.prompt_tokens[mine].mean() == pytest.approx(prompt, rel=0.02)


def test_a_further_client_does_not_change_the_others() -> None:
    one = Client(3.0, SHORT, SHORT, cv=2.0)
    alone = client_load([one], 50.0, seed=6)
    both = client_load([one, Client(5.0, SHORT, SHORT)], 50.0, seed=6)
    assert np.array_equal(both.arrival_s[both.tenant == 0], alone.arrival_s)
    assert np.array_equal(both.output_tokens[both.tenant == 0], alone.output_tokens)


def test_drawn_clients_are_unequal_and_add_up() -> None:
    clients = draw_clients(50, 12.0, SHORT, SHORT, seed=1)
    rates = np.array([client.rate for client in clients])
    assert rates.sum() == pytest.approx(12.0)
    assert rates[:5].sum() > 0.4 * 12.0
    assert len({client.cv for client in clients}) == 50


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: client_load([], 1.0, 0), "no client"),
        (lambda: client_load([Client(1e-9, SHORT, SHORT)], 1.0, 0), "no request arrives"),
        (lambda: closed_loop(0, 5, 0), "concurrency is 0"),
        (lambda: rollouts(1, 0, 0), "samples is 0"),
        (lambda: agent_sessions(AgentTrace.GAIA, 1e-9, 1.0, 0), "no session arrives"),
        (lambda: Lengths(0, 1.0, 1, 2), "give a mean above 0"),
        (lambda: Lengths(5, 1.0, 3, 2), "bounds 1 <= low <= high"),
    ],
)
def test_nothing_to_draw_is_refused(draw: Callable[[], object], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        draw()
