# SPDX-License-Identifier: Apache-2.0
"""Reasoning sessions: hidden rounds of long thinking with tool calls between, then an answer.

The shape is Frontier's (arXiv 2605.21312: rounds with tool latency, the last one visible); every
number below is an assumption. All earlier thinking stays in the context. The user sees the first
token of the answer, somewhere inside the last round: its TTFT is a lower bound of that wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.simulation.lengths import Lengths
from controller.simulation.traces import TraceError
from controller.simulation.workloads.agents import pauses
from controller.simulation.workloads.arrivals import arrival_times
from controller.simulation.workloads.rows import conversations
from controller.simulation.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class ReasoningLaw:
    """Lengths in tokens; each round thinks, the last one also answers."""

    prompt: Lengths = Lengths(600, 0.8, 20, 16_000)
    thinking: Lengths = Lengths(2_500, 0.9, 100, 32_000)
    answer: Lengths = Lengths(400, 0.6, 20, 4_000)
    observation: Lengths = Lengths(800, 0.8, 10, 16_000)
    """What a tool gives back: the new tokens of a later round."""
    tool_calls_mean: float = 1.5
    """Geometric from 0: most sessions call few tools, some many."""
    tool_mean_s: float = 2.0


def reasoning_sessions(
    law: ReasoningLaw, rate: float, duration_s: float, seed: int, *, cv: float = 1.0
) -> Workload:
    """Sessions arriving at `rate` a second."""
    rng = np.random.default_rng(seed)
    arrival_s = arrival_times(rng, rate, duration_s, cv)
    if not len(arrival_s):
        raise TraceError("reasoning: no session arrives; raise the rate or the duration")
    rounds = rng.geometric(1 / (1 + law.tool_calls_mean), len(arrival_s))
    count = int(rounds.sum())
    last = np.cumsum(rounds) - 1
    first = last - rounds + 1
    new = law.observation.draw_many(rng, count)
    new[first] = law.prompt.draw_many(rng, len(first))
    output = law.thinking.draw_many(rng, count)
    output[last] += law.answer.draw_many(rng, len(last))
    think_s = pauses(rng, law.tool_mean_s, count)
    return conversations("reasoning", arrival_s, rounds, new, output, think_s)
