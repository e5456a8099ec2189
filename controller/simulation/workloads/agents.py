# SPDX-License-Identifier: Apache-2.0
"""Agent and retrieval sessions with the averages of AMPD's four traces.

AMPD (arXiv 2602.14516) Table 1 gives averages only, and not whether lengths are per round or per
conversation. Assumed here, since no public trace has rounds (so label results as synthetic):
lengths are per round, prefill length = new tokens of a round; lognormal with the sigmas below;
rounds are 1 + Poisson where the average is no whole number and fixed where it is (HotpotQA and
DuReader were recorded with three retrievals); the pause between rounds is the tool's, lognormal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from controller.simulation.lengths import Lengths
from controller.simulation.traces import TraceError
from controller.simulation.workloads.arrivals import GapLaw, arrival_times
from controller.simulation.workloads.rows import conversations, template_heads
from controller.simulation.workloads.workload import Workload
from controller.types import FloatArray, IntArray

_SIGMA = 0.6
"""Of the logarithm of lengths [assumption]: p95 about 2.2 times the mean."""
_TOOL_SIGMA = 0.8
_ENGINE_BLOCK = 16


@dataclass(frozen=True, slots=True)
class AgentLaw:
    """What a session is like. Means: AMPD Table 1; the rest is assumed."""

    rounds_mean: float
    prompt: Lengths
    """New tokens of a round."""
    output: Lengths
    tool_mean_s: float
    """Mean pause between an answer and the next round."""


class AgentTrace(Enum):
    """The four traces of AMPD Table 1."""

    TOOLBENCH = AgentLaw(
        3.96, Lengths(703.79, _SIGMA, 16, 14_000), Lengths(50.39, _SIGMA, 1, 1_000), 1.0
    )
    GAIA = AgentLaw(
        11.32, Lengths(6161.02, _SIGMA, 16, 120_000), Lengths(528.76, _SIGMA, 1, 10_000), 3.0
    )
    HOTPOTQA = AgentLaw(
        3, Lengths(1569.8, _SIGMA, 16, 30_000), Lengths(80.03, _SIGMA, 1, 1_600), 0.5
    )
    DUREADER = AgentLaw(
        3, Lengths(3081.23, _SIGMA, 16, 60_000), Lengths(150.10, _SIGMA, 1, 3_000), 0.5
    )


def agent_sessions(
    trace: AgentTrace | AgentLaw,
    rate: float,
    duration_s: float,
    seed: int,
    *,
    cv: float = 1.0,
    law: GapLaw = GapLaw.GAMMA,
    shared_tokens: int = 0,
) -> Workload:
    """Sessions arriving at `rate` a second; CV 1 is the paper's Poisson.

    `shared_tokens` of every first prompt are the same text, such as tool descriptions.
    """
    agent = trace.value if isinstance(trace, AgentTrace) else trace
    name = trace.name.lower() if isinstance(trace, AgentTrace) else "agents"
    rng = np.random.default_rng(seed)
    arrival_s = arrival_times(rng, rate, duration_s, cv, law)
    if not len(arrival_s):
        raise TraceError(f"{name}: no session arrives; raise the rate or the duration")
    rounds = _rounds(rng, agent.rounds_mean, len(arrival_s))
    count = int(rounds.sum())
    prompt = agent.prompt.draw_many(rng, count)
    first = np.cumsum(rounds) - rounds
    prompt[first] = np.maximum(prompt[first], shared_tokens + 1)
    return conversations(
        name,
        arrival_s,
        rounds,
        prompt,
        agent.output.draw_many(rng, count),
        pauses(rng, agent.tool_mean_s, count),
        heads=template_heads(
            np.zeros(len(arrival_s), np.int64), np.array([shared_tokens]), _ENGINE_BLOCK
        ),
    )


def pauses(rng: np.random.Generator, mean_s: float, count: int) -> FloatArray:
    """(count,) lognormal times of tools and thinking people."""
    if mean_s <= 0:
        return np.zeros(count)
    return rng.lognormal(np.log(mean_s) - _TOOL_SIGMA**2 / 2, _TOOL_SIGMA, count)


def _rounds(rng: np.random.Generator, mean: float, sessions: int) -> IntArray:
    if mean < 1:
        raise TraceError(f"{mean} rounds a session: give 1 or more")
    if float(mean).is_integer():
        return np.full(sessions, int(mean))
    return 1 + rng.poisson(mean - 1, sessions)
