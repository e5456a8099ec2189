# SPDX-License-Identifier: Apache-2.0
"""One row per intended request: the values, and how they follow from what was observed. Pure.

Row times are emulated: wall time divided by the time scale, from the start of the run. None is
unknown; a request that was never sent has no times at all, not zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from controller.runtime.load.answer import Answer
from controller.simulation.traces import TraceRequest
from controller.types import Slo

_ERROR_CHARS = 160


class Status(str, Enum):
    """How a request ended. Closed: append, never rename."""

    OK = "ok"
    HTTP_ERROR = "http_error"
    """Answered with another status than 200."""
    ERROR = "error"
    """The connection or the stream broke, or the stream carried an error."""
    TIMEOUT = "timeout"
    UNFINISHED = "unfinished"
    """Still running when the run was ended."""
    NEVER_SENT = "never_sent"
    """The run ended before, or the predecessor in the session failed."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One intended request. Files have these columns in this order."""

    request_id: str
    """Ours, sent as `x-request-id`."""
    response_id: str | None
    """The server's, without the endpoint's prefix: the router's decision log has the same."""
    session_id: str
    round: int
    line: int
    phase: str
    scheduled_s: float | None
    """When it was due; unknown for a later round whose predecessor never ended."""
    sent_s: float | None
    status: Status
    http_status: int | None
    error: str | None
    prompt_tokens: int
    """As reported in `usage`, else as intended."""
    prompt_tokens_intended: int
    output_tokens: int | None
    """As reported in `usage`, else the chunks that carried text."""
    output_tokens_intended: int
    ttft_ms: float | None
    """Sent to first delivered token."""
    send_delay_ms: float | None
    """Sent minus scheduled: above a few ms the client was late, not the server."""
    itl_mean_ms: float | None
    """(last token - first token) / (tokens - 1); None for a single token."""
    tbt_max_ms: float | None
    tbt_p99_ms: float | None
    """Of the gaps between chunks that carried tokens."""
    e2e_ms: float | None
    """Sent to the end, whichever end it was."""
    prefill_wait_ms: float | None
    prefill_ms: float | None
    handover_ms: float | None
    """ttft - prefill_wait - prefill: KV transfer, decode admission, first step, network."""
    server_ttft_ms: float | None
    """Dynamo's own figure; it ends at prefill completion."""
    prefill_worker_id: str | None
    decode_worker_id: str | None
    cached_tokens: int | None
    attained: bool
    """Status ok, and TTFT and mean ITL within the SLO (a single token has no ITL to miss)."""


@dataclass(frozen=True, slots=True)
class RunClock:
    """Turns monotonic seconds into emulated ones."""

    zero: float
    scale: float

    def seconds(self, at: float | None) -> float | None:
        """Emulated seconds since the start of the run."""
        return None if at is None else (at - self.zero) / self.scale

    def span_ms(self, start: float | None, end: float | None) -> float | None:
        """Emulated milliseconds between two moments."""
        return None if start is None or end is None else (end - start) / self.scale * 1000

    def server_ms(self, wall_ms: float | None) -> float | None:
        """Emulated milliseconds of a duration that a server reported in wall clock."""
        return None if wall_ms is None else wall_ms / self.scale

    def wall(self, emulated_s: float) -> float:
        """The monotonic time at an emulated second."""
        return self.zero + emulated_s * self.scale


@dataclass(slots=True)
class Exchange:
    """What was observed of one request so far, in monotonic seconds."""

    due_at: float | None = None
    sent_at: float | None = None
    ended_at: float | None = None
    status: Status = Status.NEVER_SENT
    http_status: int | None = None
    error: str | None = None
    answer: Answer | None = None


def within_slo(ttft_ms: float | None, itl_ms: float | None, slo: Slo) -> bool:
    """Whether a finished request attained its SLO."""
    return ttft_ms is not None and ttft_ms <= slo.ttft_ms and (itl_ms or 0.0) <= slo.itl_ms


def quantile(values: Sequence[float], share: float) -> float | None:
    """Linear interpolation between order statistics; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def make_row(
    request: TraceRequest,
    exchange: Exchange,
    clock: RunClock,
    slo: Slo,
    *,
    request_id: str,
    phase: str,
) -> RequestRow:
    """The row of one intended request, whatever became of it."""
    answer = exchange.answer or Answer()
    times = answer.token_times
    first_at = times[0] if times else None
    timing = answer.timing()
    ttft_ms = clock.span_ms(exchange.sent_at, first_at)
    wait_ms = clock.server_ms(timing.prefill_wait_ms)
    prefill_ms = clock.server_ms(timing.prefill_ms)
    itl_ms = _itl_mean_ms(answer, clock)
    gaps_ms = [(after - before) / clock.scale * 1000 for before, after in pairwise(times)]
    reported = answer.prompt_tokens
    return RequestRow(
        request_id=request_id,
        response_id=answer.response_id,
        session_id=request.session_id,
        round=request.round,
        line=request.line,
        phase=phase,
        scheduled_s=clock.seconds(exchange.due_at),
        sent_s=clock.seconds(exchange.sent_at),
        status=exchange.status,
        http_status=exchange.http_status,
        error=_short(exchange.error),
        prompt_tokens=request.prompt_tokens if reported is None else reported,
        prompt_tokens_intended=request.prompt_tokens,
        output_tokens=None if exchange.answer is None else answer.output_tokens,
        output_tokens_intended=request.output_tokens,
        ttft_ms=ttft_ms,
        send_delay_ms=clock.span_ms(exchange.due_at, exchange.sent_at),
        itl_mean_ms=itl_ms,
        tbt_max_ms=max(gaps_ms, default=None),
        tbt_p99_ms=quantile(gaps_ms, 0.99),
        e2e_ms=clock.span_ms(exchange.sent_at, exchange.ended_at),
        prefill_wait_ms=wait_ms,
        prefill_ms=prefill_ms,
        handover_ms=_rest_ms(ttft_ms, wait_ms, prefill_ms),
        server_ttft_ms=clock.server_ms(timing.ttft_ms),
        prefill_worker_id=timing.prefill_worker_id,
        decode_worker_id=timing.decode_worker_id,
        cached_tokens=answer.cached_tokens,
        attained=exchange.status is Status.OK and within_slo(ttft_ms, itl_ms, slo),
    )


def _itl_mean_ms(answer: Answer, clock: RunClock) -> float | None:
    times = answer.token_times
    if not times or answer.output_tokens < 2:
        return None
    return (times[-1] - times[0]) / clock.scale * 1000 / (answer.output_tokens - 1)


def _rest_ms(whole: float | None, *parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return None if whole is None or len(known) < len(parts) else whole - sum(known)


def _short(text: str | None) -> str | None:
    """One line that fits a table cell."""
    if text is None:
        return None
    line = " ".join(text.split())
    return line if len(line) <= _ERROR_CHARS else f"{line[:_ERROR_CHARS]}…"
