# SPDX-License-Identifier: Apache-2.0
"""A synthetic workload: sessions that arrive calmly, then in a burst. Pure, seeded.

Owns: the law of arrivals, lengths, rounds and think times. No public trace has rounds and think
times (shared/data.md 4.4), so they are synthesised here, and labelled so by the file's name.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import count, islice

from controller.simulation.lengths import Lengths
from controller.simulation.trace_shaping import with_prompts
from controller.simulation.traces import BLOCK_TOKENS, Trace, TraceError, TraceRequest, arrival_s


@dataclass(frozen=True, slots=True)
class CalmThenBurst:
    """Poisson sessions at one rate, then at another. Rates are sessions a second.

    The defaults offer about 8,000 and then 26,000 new prompt tokens a second, where one prefill
    worker of the emulated profile does about 17,000.
    """

    calm_s: float = 20.0
    burst_s: float = 20.0
    calm_rate: float = 3.9
    burst_rate: float = 9.0
    prompt: Lengths = Lengths(mean=2000, sigma=0.6, low=200, high=6000)
    output: Lengths = Lengths(mean=60, sigma=0.6, low=8, high=200)
    multi_round_share: float = 0.3
    """Of sessions; they have two or three rounds with equal probability."""
    later_prompt: Lengths = Lengths(mean=300, sigma=0.5, low=50, high=1000)
    """New input of a later round."""
    think_low_s: float = 0.5
    think_high_s: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not (math.isfinite(value) and value >= 0):
                raise TraceError(f"{field.name} is {value}: give a number of at least 0")
        if self.multi_round_share > 1 or self.think_low_s > self.think_high_s:
            raise TraceError("multi_round_share must be at most 1, think_low_s below think_high_s")


@dataclass(frozen=True, slots=True)
class PhaseLoad:
    """What the sessions of one phase bring, per second of the phase."""

    sessions: int
    requests: int
    new_tokens_per_s: float
    """Without the history: the prefill work where prefix caches hold it."""
    prompt_tokens_per_s: float
    """With the history: the prefill work without any prefix cache."""
    output_tokens_per_s: float


def synthesize(law: CalmThenBurst, seed: int, name: str = "calm_then_burst") -> Trace:
    """Draw one trace; times are whole milliseconds, as files have them."""
    rng = random.Random(seed)
    lines = count(1)
    blocks = count()
    arrivals = _poisson(rng, 0.0, law.calm_s, law.calm_rate)
    arrivals += _poisson(rng, law.calm_s, law.calm_s + law.burst_s, law.burst_rate)
    sessions = []
    for number, at_s in enumerate(arrivals):
        rounds = 1 if rng.random() >= law.multi_round_share else rng.choice((2, 3))
        sessions.append(
            with_prompts(
                _request(law, rng, at_s, (f"s{number:04d}", turn, next(lines)), blocks)
                for turn in range(rounds)
            )
        )
    if not sessions:
        raise TraceError("no session arrives: raise the rates or the durations")
    return Trace(name, tuple(sessions))


def phase_load(trace: Trace, start_s: float, end_s: float) -> PhaseLoad:
    """The load of the sessions that arrive in [start_s, end_s), later rounds included."""
    inside = [each for each in trace.sessions if start_s <= arrival_s(each) < end_s]
    requests = [request for session in inside for request in session]
    seconds = end_s - start_s
    return PhaseLoad(
        sessions=len(inside),
        requests=len(requests),
        new_tokens_per_s=sum(request.new_tokens for request in requests) / seconds,
        prompt_tokens_per_s=sum(request.prompt_tokens for request in requests) / seconds,
        output_tokens_per_s=sum(request.output_tokens for request in requests) / seconds,
    )


def _poisson(rng: random.Random, start_s: float, end_s: float, rate: float) -> list[float]:
    times: list[float] = []
    at_s = start_s
    while rate > 0:
        at_s += rng.expovariate(rate)
        if round(at_s, 3) >= end_s:
            break
        times.append(round(at_s, 3))
    return times


def _request(
    law: CalmThenBurst,
    rng: random.Random,
    at_s: float,
    place: tuple[str, int, int],
    blocks: Iterator[int],
) -> TraceRequest:
    session_id, turn, line = place
    new = (law.later_prompt if turn else law.prompt).draw(rng)
    return TraceRequest(
        arrival_s=None if turn else at_s,
        session_id=session_id,
        round=turn,
        think_s=round(rng.uniform(law.think_low_s, law.think_high_s), 3) if turn else 0.0,
        prompt_tokens=new,
        new_tokens=new,
        output_tokens=law.output.draw(rng),
        # Nobody shares a block; Dynamo's own replay asks for ids all the same.
        block_ids=tuple(islice(blocks, -(-new // BLOCK_TOKENS))),
        line=line,
    )
