# SPDX-License-Identifier: Apache-2.0
"""What a trace is: sessions of rounds, each round one request to come.

Owns: the values, and what can be read off them (statistics, a quantised clock).
Does not own: file formats (trace_formats), changes (trace_shaping).

Times are seconds from the start of the trace, lengths are tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from controller.errors import UserError

BLOCK_TOKENS = 512
"""Tokens that one `hash_ids` entry of a Mooncake trace stands for."""

# A quantised clock: several arrivals share a stamp, and the stamps lie on a grid. The tolerance
# covers the jitter of the one known case (Mooncake conversation: 2,997 to 3,003 ms).
_MIN_STAMPS = 8
_MIN_ARRIVALS_PER_STAMP = 1.5
_MIN_BIN_S = 0.1
_GRID_TOLERANCE = 0.02
_GRID_SHARE = 0.95


class TraceError(UserError):
    """A trace that cannot be used; str() is one line that names file and line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One round of one session.

    `prompt_tokens` is the whole prompt: the history (earlier prompts and intended answers) and
    `new_tokens`. `block_ids` name the 512-token blocks of the new tokens; equal ids at the head
    of two prompts mean an equal prefix. Fewer ids than blocks: the rest is private text.
    """

    arrival_s: float | None
    """Of a session's first round; None for later ones, which follow their predecessor."""
    session_id: str
    round: int
    think_s: float
    """Pause between the predecessor's answer and this round; 0 for the first."""
    prompt_tokens: int
    new_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    line: int
    """In the trace file, from 1: unique within a trace."""


Session = tuple[TraceRequest, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Sessions in order of arrival, each with its rounds in order."""

    name: str
    sessions: tuple[Session, ...]

    def requests(self) -> Iterator[TraceRequest]:
        """Every intended request, session after session."""
        for session in self.sessions:
            yield from session


@dataclass(frozen=True, slots=True)
class TraceStats:
    """A trace in a few numbers; rates are None when all sessions arrive at one instant."""

    sessions: int
    requests: int
    span_s: float
    """First to last arrival of a session."""
    prompt_tokens_mean: float
    output_tokens_mean: float
    prompt_tokens_per_s: float | None
    new_tokens_per_s: float | None


def arrival_s(session: Session) -> float:
    """When the session's first round is due."""
    first = session[0].arrival_s
    if first is None:
        raise TraceError(f"session {session[0].session_id!r}: its first round has no arrival")
    return first


def trace_stats(trace: Trace) -> TraceStats:
    """Counts, means and offered load of a trace that is not empty."""
    arrivals = [arrival_s(session) for session in trace.sessions]
    requests = list(trace.requests())
    span_s = max(arrivals) - min(arrivals)
    prompt = sum(request.prompt_tokens for request in requests)
    new = sum(request.new_tokens for request in requests)
    return TraceStats(
        sessions=len(trace.sessions),
        requests=len(requests),
        span_s=span_s,
        prompt_tokens_mean=prompt / len(requests),
        output_tokens_mean=sum(request.output_tokens for request in requests) / len(requests),
        prompt_tokens_per_s=prompt / span_s if span_s > 0 else None,
        new_tokens_per_s=new / span_s if span_s > 0 else None,
    )


def clock_bin_s(trace: Trace) -> float | None:
    """Width of the bins to which the trace's clock was rounded; None for a fine clock.

    A replay of a quantised trace sends batches that the original traffic did not have.
    """
    arrivals = sorted(arrival_s(session) for session in trace.sessions)
    stamps = sorted(set(arrivals))
    if len(stamps) < _MIN_STAMPS or len(arrivals) < _MIN_ARRIVALS_PER_STAMP * len(stamps):
        return None
    gaps = sorted(after - before for before, after in pairwise(stamps))
    width = gaps[len(gaps) // 2]
    if width < _MIN_BIN_S:
        return None
    on_grid = sum(abs(gap - width * round(gap / width)) <= _GRID_TOLERANCE * width for gap in gaps)
    return width if on_grid >= _GRID_SHARE * len(gaps) else None
