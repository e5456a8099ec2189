# SPDX-License-Identifier: Apache-2.0
"""What a run amounts to: rows in, one frozen summary out. Pure.

Attainment and goodput are over *intended* requests: failed, unfinished and never-sent ones are
misses. Percentiles are over *finished* requests (status ok) and are therefore optimistic under
overload; the counts beside them say how many are missing. None of nothing, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from controller.runtime.load.rows import RequestRow, Status, quantile
from controller.types import Slo, Spread

TOTAL = "all"
SUMMARY_SCHEMA = "equilibrium.load-summary/1"
_FAILED = (Status.HTTP_ERROR, Status.ERROR, Status.TIMEOUT)
_DECILES = 10


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One phase, or the whole run."""

    name: str
    intended: int
    ok: int
    failed: int
    unfinished: int
    never_sent: int
    attained: int
    attainment: float | None
    """Of intended requests."""
    sessions: int
    sessions_attained: int
    """Sessions all of whose rounds attained the SLO."""
    span_s: float | None
    """First due request to the last end in the group."""
    goodput_per_s: float | None
    """Attained requests per second of the span."""
    output_tokens_per_s: float | None
    """Tokens of finished requests per second of the span."""
    ttft_ms: Spread
    prefill_wait_ms: Spread
    prefill_ms: Spread
    handover_ms: Spread
    itl_ms: Spread
    """Of the requests' mean inter-token latencies."""
    tbt_p99_ms: Spread
    """Of the requests' own 99th percentile gaps."""
    tbt_max_ms: float | None
    """The longest gap of any finished request."""
    e2e_ms: Spread
    send_delay_ms: Spread
    """Over all sent requests: how late this client was."""


@dataclass(frozen=True, slots=True)
class ShareSummary:
    """Attainment of a slice, to see who pays."""

    name: str
    intended: int
    attained: int
    attainment: float | None
    ttft_p95_ms: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run. `phases` in order of first arrival; `total` covers all rows."""

    slo: Slo
    total: GroupSummary
    phases: tuple[GroupSummary, ...]
    by_round: tuple[ShareSummary, ...]
    by_prompt_decile: tuple[ShareSummary, ...]
    """Of the intended prompt length, shortest first; empty below ten requests."""
    errors: tuple[tuple[str, int], ...]
    """Distinct error texts of failed requests with their counts, most frequent first."""


def summarize(rows: Sequence[RequestRow], slo: Slo) -> Summary:
    """Summarize rows whose `attained` was judged by the same SLO."""
    phases = dict.fromkeys(row.phase for row in rows)
    return Summary(
        slo=slo,
        total=_group(TOTAL, rows),
        phases=tuple(_group(name, [row for row in rows if row.phase == name]) for name in phases),
        by_round=_by_round(rows),
        by_prompt_decile=_by_prompt_decile(rows),
        errors=_errors(rows),
    )


def summary_to_dict(summary: Summary) -> dict[str, object]:
    """For JSON; unknown stays None."""
    return {"schema": SUMMARY_SCHEMA, **asdict(summary)}


def served_all(summary: Summary) -> bool:
    """Whether every intended request was answered to its end."""
    return summary.total.ok == summary.total.intended


def _group(name: str, rows: Sequence[RequestRow]) -> GroupSummary:
    finished = [row for row in rows if row.status is Status.OK]
    attained = sum(row.attained for row in rows)
    sessions: dict[str, bool] = {}
    for row in rows:
        sessions[row.session_id] = sessions.get(row.session_id, True) and row.attained
    span_s = _span_s(rows)
    tokens = sum(row.output_tokens or 0 for row in finished)

    def over(value: Callable[[RequestRow], float | None]) -> Spread:
        return _spread(map(value, finished))

    return GroupSummary(
        name=name,
        intended=len(rows),
        ok=len(finished),
        failed=sum(row.status in _FAILED for row in rows),
        unfinished=sum(row.status is Status.UNFINISHED for row in rows),
        never_sent=sum(row.status is Status.NEVER_SENT for row in rows),
        attained=attained,
        attainment=_share(attained, len(rows)),
        sessions=len(sessions),
        sessions_attained=sum(sessions.values()),
        span_s=span_s,
        goodput_per_s=attained / span_s if span_s else None,
        output_tokens_per_s=tokens / span_s if span_s else None,
        ttft_ms=over(lambda row: row.ttft_ms),
        prefill_wait_ms=over(lambda row: row.prefill_wait_ms),
        prefill_ms=over(lambda row: row.prefill_ms),
        handover_ms=over(lambda row: row.handover_ms),
        itl_ms=over(lambda row: row.itl_mean_ms),
        tbt_p99_ms=over(lambda row: row.tbt_p99_ms),
        tbt_max_ms=over(lambda row: row.tbt_max_ms).max,
        e2e_ms=over(lambda row: row.e2e_ms),
        send_delay_ms=_spread(row.send_delay_ms for row in rows),
    )


def _spread(values: Iterable[float | None]) -> Spread:
    known = sorted(value for value in values if value is not None)
    return Spread(
        count=len(known),
        mean=sum(known) / len(known) if known else None,
        p50=quantile(known, 0.5),
        p95=quantile(known, 0.95),
        p99=quantile(known, 0.99),
        max=known[-1] if known else None,
    )


def _span_s(rows: Sequence[RequestRow]) -> float | None:
    starts = [row.scheduled_s for row in rows if row.scheduled_s is not None]
    ends = [
        row.sent_s + row.e2e_ms / 1000
        for row in rows
        if row.sent_s is not None and row.e2e_ms is not None
    ]
    span_s = max(ends) - min(starts) if starts and ends else 0.0
    return span_s if span_s > 0 else None


def _by_round(rows: Sequence[RequestRow]) -> tuple[ShareSummary, ...]:
    rounds = sorted({row.round for row in rows})
    return tuple(
        _slice(f"round {number}", [row for row in rows if row.round == number]) for number in rounds
    )


def _by_prompt_decile(rows: Sequence[RequestRow]) -> tuple[ShareSummary, ...]:
    if len(rows) < _DECILES:
        return ()
    ordered = sorted(rows, key=lambda row: (row.prompt_tokens_intended, row.line))
    edges = [len(ordered) * part // _DECILES for part in range(_DECILES + 1)]
    parts = [ordered[low:high] for low, high in pairwise(edges)]
    return tuple(
        _slice(f"{part[0].prompt_tokens_intended}-{part[-1].prompt_tokens_intended}", part)
        for part in parts
    )


def _slice(name: str, rows: Sequence[RequestRow]) -> ShareSummary:
    attained = sum(row.attained for row in rows)
    finished = [row.ttft_ms for row in rows if row.status is Status.OK]
    return ShareSummary(
        name=name,
        intended=len(rows),
        attained=attained,
        attainment=_share(attained, len(rows)),
        ttft_p95_ms=_spread(finished).p95,
    )


def _errors(rows: Sequence[RequestRow]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for row in rows:
        if row.status in _FAILED:
            text = row.error or row.status.value
            counts[text] = counts.get(text, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
