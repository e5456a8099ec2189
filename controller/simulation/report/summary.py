# SPDX-License-Identifier: Apache-2.0
"""A run in one frozen summary.

Owns: which requests a figure is over. Does not own: printing, files, several seeds.

Attainment and goodput are over all requests of the cohort: rejected, failed, unfinished and
never-issued ones are misses (evaluation rule 1). Times are over served requests and therefore
optimistic under overload; the counts beside them say how many are missing. None of nothing, never
0. Both ITL criteria stand side by side, since a rule may be perfect on the mean and break the p99
gap of nearly every request (rule 6).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.routing.kernels.reasons import REASONS
from controller.simulation.cluster import state as at
from controller.simulation.cluster.result import SimResult
from controller.simulation.cluster.spec import ClusterSpec, Status
from controller.simulation.cluster.token_gaps import token_gaps
from controller.simulation.report.parts import LOCAL, ttft_parts
from controller.simulation.traces import TraceError
from controller.simulation.workloads.workload import chain_heads
from controller.types import FloatArray, IntArray, Spread

SCHEMA = "equilibrium.simulation-summary/1"
_DECILES = 10
_MOST_STEPS = 10_000_000
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cohort:
    """Requests whose session, or chain of followers, begins in [start_s, end_s)."""

    start_s: float = 0.0
    end_s: float = float("inf")


EVERYONE = Cohort()


@dataclass(frozen=True, slots=True)
class SimSummary:
    """One run. Times in ms unless the name says otherwise."""

    requests: int
    served: int
    rejected: int
    failed: int
    unfinished: int
    never_issued: int
    attainment: float
    """TTFT and mean ITL within the SLO; a single token has no ITL to miss."""
    attainment_p99_gap: float
    """TTFT and the request's own p99 gap within the SLO."""
    attainment_longest_decile: float | None
    """By the mean ITL, of the tenth with the longest prompts; None below ten requests."""
    sessions: int
    sessions_attained: int
    """All of whose requests attained the SLO, by the mean ITL."""
    span_s: float
    """First arrival of the cohort to the last end in it."""
    requests_per_s: float | None
    """Served, a second of the span."""
    goodput_per_s: float | None
    """Attained by the mean ITL, a second of the span."""
    goodput_p99_gap_per_s: float | None
    prompt_tokens_per_s: float | None
    """Of served requests, history and hits included."""
    output_tokens_per_s: float | None
    ttft_ms: Spread
    queue_ms: Spread
    prefill_ms: Spread
    transfer_ms: Spread
    admission_ms: Spread
    """The four parts of the TTFT (parts.py)."""
    itl_ms: Spread
    """Each request's mean gap."""
    gap_p99_ms: Spread
    """Each request's own p99 gap."""
    gap_max_ms: Spread
    """Each request's longest gap."""
    token_gap_ms: Spread
    """Over all gaps between tokens of served requests, each counted once; whole run. All None
    beyond 10 million decode steps, where counting them would take more memory than the run."""
    latency_ms: Spread
    longest_wait_ms: float | None
    """For a first token, of everyone who was let in, also of those who still waited at the end."""
    local_share: float | None
    """Of placed prefills."""
    reasons: dict[str, int]
    """Placements by reason."""
    hit_rate: float | None
    """Prompt tokens found in the prefix cache where the prefill ran, of those prefilled."""
    utilisation_prefill: float | None
    """Share of the run that a prefill worker computes, mean over workers; whole run."""
    utilisation_decode: float | None
    preemptions: int
    """Of the whole run."""


def summarize(result: SimResult, cluster: ClusterSpec, cohort: Cohort = EVERYONE) -> SimSummary:
    """The summary of a run. TraceError when the cohort is empty."""
    inside = _inside(result, cohort)
    good, good_gap = attained(result)
    parts = ttft_parts(result, cluster)
    served = result.served & inside
    span_s = _span_s(result, inside)
    sessions, whole = _sessions(result, inside, good)

    def of(seconds: FloatArray) -> Spread:
        return _spread(seconds[served] * 1e3)

    def per_s(total: float) -> float | None:
        return float(total) / span_s if span_s > 0 else None

    def mean(mask: Mask) -> float:
        return float(mask[inside].mean())

    busy = _utilisation(result, cluster)
    return SimSummary(
        requests=int(inside.sum()),
        **{status.name.lower(): _count(result, inside, status) for status in Status},
        attainment=mean(good),
        attainment_p99_gap=mean(good_gap),
        attainment_longest_decile=_longest_decile(result, inside, good),
        sessions=sessions,
        sessions_attained=whole,
        span_s=span_s,
        requests_per_s=per_s(served.sum()),
        goodput_per_s=per_s((good & inside).sum()),
        goodput_p99_gap_per_s=per_s((good_gap & inside).sum()),
        prompt_tokens_per_s=per_s(result.workload.prompt_tokens[served].sum()),
        output_tokens_per_s=per_s(result.workload.output_tokens[served].sum()),
        ttft_ms=of(result.ttft_s),
        queue_ms=of(parts.queue_s),
        prefill_ms=of(parts.prefill_s),
        transfer_ms=of(parts.transfer_s),
        admission_ms=of(parts.admission_s),
        itl_ms=of(np.where(result.workload.output_tokens > 1, result.itl_s, np.nan)),
        gap_p99_ms=of(result.gap_p99_s),
        gap_max_ms=of(result.gap_max_s),
        token_gap_ms=_token_gaps_ms(result),
        latency_ms=of(result.latency_s),
        longest_wait_ms=_longest_wait_ms(result, inside),
        local_share=_share((result.place == LOCAL) & inside, (result.place >= 0) & inside),
        reasons=_reasons(result, inside),
        hit_rate=_hit_rate(result, inside),
        utilisation_prefill=busy[0],
        utilisation_decode=busy[1],
        preemptions=int(result.counters["preemptions"].sum()),
    )


def attained(result: SimResult) -> tuple[Mask, Mask]:
    """(n,) masks of requests within the SLO: by the mean ITL, and by the p99 gap."""
    slo = result.options.slo
    first = result.served & (result.ttft_s * 1e3 <= slo.ttft_ms)
    single = result.workload.output_tokens < 2
    by_mean = single | (result.itl_s * 1e3 <= slo.itl_ms)
    by_gap = single | (result.gap_p99_s * 1e3 <= slo.itl_ms)
    return first & by_mean, first & by_gap


def summary_to_dict(summary: SimSummary) -> dict[str, Any]:
    """For JSON; unknown stays None."""
    return {"schema": SCHEMA, **asdict(summary)}


def flat_figures(summary: SimSummary) -> dict[str, float | None]:
    """Every number by a name of its own (`ttft_ms_p95`), for means over seeds."""
    found: dict[str, float | None] = {}
    for field in fields(summary):
        value = getattr(summary, field.name)
        if isinstance(value, Spread):
            found |= {f"{field.name}_{k}": v for k, v in asdict(value).items() if k != "count"}
        elif isinstance(value, dict):
            found |= {f"{field.name}_{key}": float(each) for key, each in value.items()}
        else:
            found[field.name] = None if value is None else float(value)
    return found


def run_end_s(result: SimResult) -> float:
    """The last thing that a run knows of; its limit when somebody was still at it then."""
    times = (result.arrival_s, result.first_token_s, result.finish_s)
    known = [float(np.nanmax(each)) for each in times if not np.isnan(each).all()]
    open_ = (result.status == Status.UNFINISHED.value).any()
    if open_ and np.isfinite(result.options.until_s):
        return float(result.options.until_s)
    return max(known, default=0.0)


def _inside(result: SimResult, cohort: Cohort) -> Mask:
    w = result.workload
    begins = w.arrival_s[chain_heads(w.after)]
    inside: Mask = (begins >= cohort.start_s) & (begins < cohort.end_s)
    if not inside.any():
        raise TraceError(
            f"{w.name}: no request begins from {cohort.start_s:g} to {cohort.end_s:g} s; the trace "
            f"has arrivals from {np.nanmin(w.arrival_s):g} to {np.nanmax(w.arrival_s):g} s"
        )
    return inside


def _count(result: SimResult, inside: Mask, status: Status) -> int:
    return int(((result.status == status.value) & inside).sum())


def _spread(values: FloatArray) -> Spread:
    known = values[~np.isnan(values)]
    if not len(known):
        return Spread(0, None, None, None, None, None)
    p50, p95, p99 = (float(each) for each in np.percentile(known, [50, 95, 99]))
    return Spread(len(known), float(known.mean()), p50, p95, p99, float(known.max()))


def _token_gaps_ms(result: SimResult) -> Spread:
    """Interpolates between order statistics, as if every gap stood there by itself."""
    state = result.state
    if state is None or state.log["n"][: state.ctl[at.LOG_USED]].sum() > _MOST_STEPS:
        return Spread(0, None, None, None, None, None)
    gap_s, weight = token_gaps(state)
    count = int(weight.sum())
    if not count:
        return Spread(0, None, None, None, None, None)
    order = np.argsort(gap_s, kind="stable")
    ordered, up_to = gap_s[order] * 1e3, np.cumsum(weight[order])

    def at_rank(rank: int) -> float:
        return float(ordered[np.searchsorted(up_to, rank, side="right")])

    def percentile(share: float) -> float:
        place = share * (count - 1)
        low = int(place)
        below, above = at_rank(low), at_rank(min(low + 1, count - 1))
        return below + (above - below) * (place - low)

    mean = float(ordered @ weight[order]) / count
    p50, p95, p99 = (percentile(share) for share in (0.5, 0.95, 0.99))
    return Spread(count, mean, p50, p95, p99, float(ordered[-1]))


def _span_s(result: SimResult, inside: Mask) -> float:
    arrived = result.arrival_s[inside]
    begin = float(np.nanmin(arrived)) if not np.isnan(arrived).all() else 0.0
    ends = result.finish_s[inside]
    if ((result.status == Status.UNFINISHED.value) & inside).any() or np.isnan(ends).all():
        return max(0.0, run_end_s(result) - begin)
    return max(0.0, float(np.nanmax(ends)) - begin)


def _sessions(result: SimResult, inside: Mask, good: Mask) -> tuple[int, int]:
    session: IntArray = result.workload.session[inside]
    numbers, place = np.unique(session, return_inverse=True)
    missed = np.bincount(place, weights=~good[inside], minlength=len(numbers))
    return len(numbers), int((missed == 0).sum())


def _longest_decile(result: SimResult, inside: Mask, good: Mask) -> float | None:
    rows = np.flatnonzero(inside)
    if len(rows) < _DECILES:
        return None
    order = np.argsort(result.workload.prompt_tokens[rows], kind="stable")
    longest = rows[order[len(rows) * (_DECILES - 1) // _DECILES :]]
    return float(good[longest].mean())


def _longest_wait_ms(result: SimResult, inside: Mask) -> float | None:
    waited_s = result.ttft_s.copy()
    waits = (result.status == Status.UNFINISHED.value) & np.isnan(waited_s)
    waited_s[waits] = run_end_s(result) - result.arrival_s[waits]
    known = waited_s[inside & ~np.isnan(waited_s)]
    return float(known.max()) * 1e3 if len(known) else None


def _share(part: Mask, whole: Mask) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None


def _reasons(result: SimResult, inside: Mask) -> dict[str, int]:
    counts = np.bincount(result.reason[inside & (result.reason >= 0)], minlength=len(REASONS))
    return {REASONS[k].value: int(count) for k, count in enumerate(counts) if count}


def _hit_rate(result: SimResult, inside: Mask) -> float | None:
    done = inside & ~np.isnan(result.first_token_s)
    asked = result.workload.prompt_tokens[done].sum()
    return float(result.hit_tokens[done].sum() / asked) if asked else None


def _utilisation(result: SimResult, cluster: ClusterSpec) -> tuple[float | None, float | None]:
    end_s = run_end_s(result)
    first = len(cluster.prefill)
    pools = (result.busy_s[:first], result.busy_s[first:])
    return tuple(  # type: ignore[return-value]
        float(busy.mean()) / end_s if len(busy) and end_s > 0 else None for busy in pools
    )
