# SPDX-License-Identifier: Apache-2.0
"""Step times and workloads on which our simulator and Dynamo's replay are compared.

Owns: one profile, and the cases by name, each drawn from a seed. Does not own: either simulator.
Prompts of around 2,000 tokens and answers of around 200, both long-tailed; prefill workers are
busy for some two thirds of the time, so that queues, not bare step times, make the tail of TTFT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controller.simulation.workloads.arrivals import arrival_times
from controller.simulation.workloads.rows import (
    Heads,
    conversations,
    numbered,
    single_rounds,
    template_heads,
)
from controller.simulation.workloads.workload import Workload, engine_block_ids
from controller.types import FloatArray, IntArray
from experiments.replay_dynamo import StepProfile

BLOCK = 64
SHARED_HEADS = 20
ROUND_S, TOKEN_S = 0.1, 0.008
"""A guess of what a round takes, for arrivals that were logged."""


def profile() -> StepProfile:
    """Prefill with a bend; decode steps of 7 ms + 20 us a sequence + 22 ns a KV token."""
    held = np.linspace(0, 600_000, 61)
    context = np.unique(np.round(np.geomspace(64, 32_768, 90)))
    return StepProfile(
        prompt_tokens=np.array([0.0, 128, 512, 2048, 8192]),
        prefill_ms=np.array([8.0, 14, 34, 112.4, 470]),
        held_tokens=held,
        context_tokens=context,
        decode_ms=7 + 0.02 * held[:, None] / context + 2.2e-5 * held[:, None],
        bytes_per_token=131_072,
        bandwidth_gb_s=25.0,
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A workload by seed and number of sessions, and the cluster that serves it."""

    draw: Callable[[np.random.Generator, int], Workload]
    sessions: int
    prefill: int
    decode: int


def steady(rng: np.random.Generator, count: int) -> Workload:
    """Single rounds, Poisson arrivals."""
    return _singles("steady", np.cumsum(rng.exponential(1 / 12, count)), rng)


def bursty(rng: np.random.Generator, count: int) -> Workload:
    """Single rounds, Gamma gaps with a CV of 3."""
    return _singles("bursty", arrival_times(rng, 10.0, count / 10.0, 3.0), rng)


def sessions(rng: np.random.Generator, count: int) -> Workload:
    """Conversations of one to seven rounds with pauses between; many share a long head."""
    rounds = rng.integers(1, 8, count)
    total = int(rounds.sum())
    heads = template_heads(
        rng.integers(-1, SHARED_HEADS, count), rng.integers(256, 2000, SHARED_HEADS), BLOCK
    )
    new = _lengths(rng, 500, 16, 3000, total)
    new[np.cumsum(rounds) - rounds] += np.diff(heads.starts) * BLOCK
    return conversations(
        "sessions",
        np.cumsum(rng.exponential(1 / 1.4, count)),
        rounds,
        new,
        _lengths(rng, 150, 2, 800, total),
        rng.exponential(4.0, total),
        heads=heads,
    )


def logged(rng: np.random.Generator, count: int) -> Workload:
    """Conversations as a Mooncake trace has them: every round arrives at a time of its own, and
    names the blocks of all that was said before."""
    told = sessions(rng, count)
    arrival_s = told.arrival_s / 2
    for row in np.flatnonzero(told.after >= 0):
        before = told.after[row]
        spoken_s = ROUND_S + TOKEN_S * told.output_tokens[before]
        arrival_s[row] = arrival_s[before] + spoken_s + told.think_s[row]
    order = np.argsort(arrival_s, kind="stable")
    ids = [engine_block_ids(told, int(row), BLOCK) for row in order]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in ids])])
    return single_rounds(
        "logged",
        arrival_s[order],
        told.prompt_tokens[order],
        told.output_tokens[order],
        heads=Heads(BLOCK, numbered(np.concatenate(ids)), starts),
    )


CASES = {
    "steady": Case(steady, 4000, 2, 2),
    "bursty": Case(bursty, 4000, 2, 2),
    "logged": Case(logged, 1200, 2, 2),
    "sessions": Case(sessions, 1200, 1, 1),
}


def _singles(name: str, arrival_s: FloatArray, rng: np.random.Generator) -> Workload:
    count = len(arrival_s)
    prompts = _lengths(rng, 2000, 64, 12_000, count)
    return single_rounds(name, arrival_s, prompts, _lengths(rng, 200, 2, 1200, count))


def _lengths(rng: np.random.Generator, mean: float, low: int, high: int, count: int) -> IntArray:
    """Lognormal around a mean."""
    drawn = rng.lognormal(np.log(mean) - 0.18, 0.6, count)
    lengths: IntArray = np.clip(drawn, low, high).astype(np.int64)
    return lengths
