# SPDX-License-Identifier: Apache-2.0
"""Synthetic pass streams: what a prefill and a decode worker of a known cost would report."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from controller.costs.live_fit import LiveFit
from controller.costs.live_passes import Pass
from controller.costs.model import TableCost
from controller.costs.tables import linear_tables

BLOCK, BUDGET = 64, 2048


def dense70b() -> TableCost:
    """The shipped illustrative profile's coefficients."""
    return TableCost(
        linear_tables(
            base_s=15e-3,
            per_sequence_s=0.02e-3,
            per_context_token_s=0.03e-6,
            per_prefill_token_s=0.0523e-3,
            per_prefill_pair_s=0.9e-9,
            max_chunk_tokens=BUDGET,
            kv_latency_s=2e-3,
            kv_bytes_per_token=327680,
            kv_bandwidth_bytes_s=25e9,
        )
    )


@dataclass(frozen=True)
class Traffic:
    """What the workers compute."""

    seconds: float = 120.0
    seed: int = 0
    max_batch: int = 64
    max_prompt: int = 6000
    max_history: int = 8192
    several: float = 0.3
    """Share of prefill passes that hold two or three prompts."""
    mixed: float = 0.1
    """Share of decode passes that hold prompt tokens too."""
    decode: bool = True
    prefill: bool = True


@dataclass(frozen=True)
class Faults:
    """How what is reported differs from what the cost model says."""

    noise: float = 0.0
    """Standard deviation of the logarithm of every time."""
    outliers: float = 0.0
    """Share of passes that take 3 to 20 times as long."""
    cold_passes: int = 0
    """First passes of a worker, 2 to 30 times as long."""
    first_of_shape: float = 1.0
    """Times that a first batch or chunk takes as long."""
    slow_at_s: float = math.inf
    slow: float = 1.5
    fast_at_s: float = math.inf


def passes(
    cost: TableCost, traffic: Traffic, faults: Faults = Faults(), start_s: float = 0.0
) -> Iterator[Pass]:
    """Both workers' passes in order of time, clocked by their own durations."""
    workers = []
    if traffic.prefill:
        workers.append(_worker("p0", _prefills(traffic), cost, traffic, faults, start_s))
    if traffic.decode:
        workers.append(_worker("d0", _decodes(traffic), cost, traffic, faults, start_s))
    pending = [next(worker, None) for worker in workers]
    while any(one is not None for one in pending):
        index = min(
            (i for i, one in enumerate(pending) if one is not None),
            key=lambda i: pending[i].at_s,  # type: ignore[union-attr]
        )
        yield pending[index]  # type: ignore[misc]
        pending[index] = next(workers[index], None)


def _worker(
    name: str,
    work: Callable[[random.Random], Iterator[tuple[int, int, list[tuple[int, int]]]]],
    cost: TableCost,
    traffic: Traffic,
    faults: Faults,
    start_s: float,
) -> Iterator[Pass]:
    rng = random.Random(f"{name}{traffic.seed}")
    now_s, seen = start_s, set()
    for number, (batch, context, prompts) in enumerate(work(rng)):
        chunk = sum(tokens for tokens, _ in prompts)
        pairs = sum(tokens * (history + tokens / 2) for tokens, history in prompts)
        wall_s = cost.step_s(batch, context, chunk, pairs) * math.exp(rng.gauss(0, faults.noise))
        if faults.slow_at_s <= now_s < faults.fast_at_s:
            wall_s *= faults.slow
        end_s = now_s + wall_s
        if rng.random() < faults.outliers:
            wall_s *= rng.uniform(3, 20)
        if number < faults.cold_passes:
            wall_s *= rng.uniform(2, 30)
        shape = (batch.bit_length(), chunk.bit_length())
        wall_s *= 1.0 if shape in seen else faults.first_of_shape
        seen.add(shape)
        now_s = end_s + (rng.expovariate(10.0) if rng.random() < 0.05 else 0.0)
        if now_s - start_s > traffic.seconds:
            return
        history = sum(each for _, each in prompts)
        yield Pass(name, now_s, batch, context, len(prompts), chunk, history, wall_s)


def _prefills(traffic: Traffic):
    def work(rng: random.Random):
        while True:
            count = rng.choice((2, 3)) if rng.random() < traffic.several else 1
            prompts = [_prompt(rng, traffic) for _ in range(count)]
            while prompts:
                budget, step = BUDGET, []
                left = []
                for tokens, history in prompts:
                    part = min(tokens, budget)
                    budget -= part
                    if part:
                        step.append((part, history))
                    if tokens > part:
                        left.append((tokens - part, history + part))
                prompts = left
                yield 0, 0, step

    return work


def _decodes(traffic: Traffic):
    def work(rng: random.Random):
        running: list[list[int]] = []
        while True:
            aim = rng.choice([b for b in (1, 2, 4, 8, 16, 32, 64, 128) if b <= traffic.max_batch])
            for _ in range(rng.randrange(20, 120)):
                while len(running) < aim:
                    running.append([rng.randrange(50, 8000), rng.randrange(20, 300)])
                del running[aim:]
                prompts = []
                if rng.random() < traffic.mixed:
                    tokens, history = _prompt(rng, traffic)
                    prompts = [(min(tokens, BUDGET - len(running)), history)]
                yield len(running), sum(context for context, _ in running), prompts
                for sequence in running:
                    sequence[0] += 1
                    sequence[1] -= 1
                running = [sequence for sequence in running if sequence[1] > 0]

    return work


def _prompt(rng: random.Random, traffic: Traffic) -> tuple[int, int]:
    tokens = round(math.exp(rng.uniform(math.log(16), math.log(traffic.max_prompt))))
    history = BLOCK * rng.randrange(traffic.max_history // BLOCK) if rng.random() < 0.5 else 0
    return tokens, history


def feed(live: LiveFit, stream: Iterator[Pass]) -> None:
    """Observe all, fitting whenever it is due."""
    for one in stream:
        live.observe(one)
        if live.due(one.at_s):
            live.refit(one.at_s)


@functools.cache
def points(traffic: Traffic) -> tuple[np.ndarray, ...]:
    """Fresh steps of the same traffic, one prompt each: batch, context, chunk, pairs."""
    fresh = replace(traffic, seed=traffic.seed + 1000, several=0.0, seconds=40.0)
    # Durations only set the clock here, so any worker's will do.
    rows = [(p.batch, p.context, p.chunk, p.pairs) for p in passes(dense70b(), fresh)]
    return tuple(np.array(rows, dtype=float).T)


def errors(live: LiveFit, truth: TableCost, traffic: Traffic, slow: float = 1.0) -> np.ndarray:
    """Relative errors of the fit in force at fresh points of the same traffic."""
    assert live.in_force is not None
    columns = points(traffic)
    predicted = TableCost(live.in_force.tables).steps_s(*columns)
    return np.abs(predicted / (slow * truth.steps_s(*columns)) - 1)
