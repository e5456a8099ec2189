# SPDX-License-Identifier: Apache-2.0
"""Changes to a trace: rate, lengths, cuts, a spread-out clock. Values in, values out.

Does not own: what a trace is (traces), how it is read (trace_formats).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from controller.simulation.traces import (
    BLOCK_TOKENS,
    Session,
    Trace,
    TraceError,
    TraceRequest,
    arrival_s,
    clock_bin_s,
)


@dataclass(frozen=True, slots=True)
class Shaping:
    """Every change of one replay; the defaults change nothing.

    Applied in this order: `spread_bins`, `rate`, lengths, `max_prompt`, `duration_s`, `limit`.
    """

    rate: float = 1.0
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    max_prompt: int | None = None
    duration_s: float | None = None
    limit: int | None = None
    spread_bins: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        scales = {
            "rate scale": self.rate,
            "prompt scale": self.prompt_scale,
            "output scale": self.output_scale,
            "duration": self.duration_s,
            "request limit": self.limit,
            "prompt limit": self.max_prompt,
        }
        for name, value in scales.items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise TraceError(f"{name} is {value}: give a number above 0")


def shape_trace(trace: Trace, shaping: Shaping) -> Trace:
    """Apply all of `shaping`; TraceError when nothing is left."""
    shaped = trace
    if shaping.spread_bins:
        shaped = spread_bins(shaped, shaping.seed)
    shaped = scale_rate(shaped, shaping.rate)
    shaped = scale_lengths(shaped, shaping.prompt_scale, shaping.output_scale)
    if shaping.max_prompt is not None:
        shaped = limit_prompt(shaped, shaping.max_prompt)
    if shaping.duration_s is not None:
        shaped = limit_duration(shaped, shaping.duration_s)
    if shaping.limit is not None:
        shaped = limit_requests(shaped, shaping.limit)
    if not shaped.sessions:
        raise TraceError(f"{trace.name}: no request is left after the cuts; relax them")
    return shaped


def scale_rate(trace: Trace, factor: float) -> Trace:
    """`factor` times as many sessions a second. Think times are the users' own and stay."""

    def faster(session: Session) -> Session:
        return (replace(session[0], arrival_s=arrival_s(session) / factor), *session[1:])

    return replace(trace, sessions=tuple(faster(session) for session in trace.sessions))


def scale_lengths(trace: Trace, prompt: float, output: float) -> Trace:
    """Multiply new prompt tokens and output tokens, at least 1 token each.

    Block ids are cut at the tail, so a shared prefix stays shared as far as the prompt still
    reaches; a longer prompt grows by private text.
    """
    if prompt == 1.0 and output == 1.0:
        return trace

    def scaled(request: TraceRequest) -> TraceRequest:
        new = max(1, round(request.new_tokens * prompt))
        return replace(
            request,
            new_tokens=new,
            output_tokens=max(1, round(request.output_tokens * output)),
            block_ids=request.block_ids[: -(-new // BLOCK_TOKENS)],
        )

    return replace(
        trace, sessions=tuple(with_prompts(map(scaled, session)) for session in trace.sessions)
    )


def with_prompts(rounds: Iterable[TraceRequest]) -> Session:
    """The rounds with `prompt_tokens` recomputed from new tokens and answers."""
    done: list[TraceRequest] = []
    history = 0
    for request in rounds:
        prompt = history + request.new_tokens
        same = prompt == request.prompt_tokens
        done.append(request if same else replace(request, prompt_tokens=prompt))
        history += request.new_tokens + request.output_tokens
    return tuple(done)


def limit_prompt(trace: Trace, max_tokens: int) -> Trace:
    """End each session before its first prompt of more than `max_tokens`."""

    def short(session: Session) -> Session:
        too_long = (n for n, request in enumerate(session) if request.prompt_tokens > max_tokens)
        return session[: next(too_long, len(session))]

    kept = (short(session) for session in trace.sessions)
    return replace(trace, sessions=tuple(session for session in kept if session))


def limit_duration(trace: Trace, duration_s: float) -> Trace:
    """Only sessions that arrive before `duration_s`, with all their rounds."""
    kept = (session for session in trace.sessions if arrival_s(session) < duration_s)
    return replace(trace, sessions=tuple(kept))


def limit_requests(trace: Trace, limit: int) -> Trace:
    """The first `limit` requests, session after session; the last session may lose rounds."""
    kept: list[Session] = []
    left = limit
    for session in trace.sessions:
        if left <= 0:
            break
        kept.append(session[:left])
        left -= len(kept[-1])
    return replace(trace, sessions=tuple(kept))


def spread_bins(trace: Trace, seed: int) -> Trace:
    """Spread sessions uniformly inside the bins of a quantised clock; a fine clock stays."""
    width = clock_bin_s(trace)
    if width is None:
        return trace
    rng = random.Random(seed)

    def moved(session: Session) -> Session:
        due = arrival_s(session) + rng.random() * width
        return (replace(session[0], arrival_s=due), *session[1:])

    # Lists are built in file order before sorting: the draw of a session must not depend on it.
    return replace(trace, sessions=tuple(sorted(map(moved, trace.sessions), key=arrival_s)))
