# SPDX-License-Identifier: Apache-2.0
"""A workload in a few numbers: rates, burstiness, lengths, what prompts have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.simulation.workloads.workload import Workload
from controller.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class LengthStats:
    """Tokens; percentiles interpolate linearly."""

    mean: float
    p50: float
    p95: float
    longest: int


@dataclass(frozen=True, slots=True)
class WorkloadStats:
    """Rates count arrivals that have a time of their own; None where fewer than two have one."""

    requests: int
    sessions: int
    span_s: float
    """First to last arrival."""
    rate: float | None
    """Arrivals a second of the span."""
    gap_cv: float | None
    """Standard deviation of the gaps over their mean."""
    most_in_1_s: int
    """Arrivals in the fullest second of a clock that starts with the run."""
    prompt: LengthStats
    output: LengthStats
    history_share: float
    """Share of all prompt tokens that earlier rounds of the stream have made."""
    block_reuse: float | None
    """Hits of an infinite cache among the shared-block ids; None without ids."""


def workload_stats(workload: Workload) -> WorkloadStats:
    """Statistics of a valid workload."""
    w = workload
    times = w.arrival_s[~np.isnan(w.arrival_s)]
    gaps = np.diff(times)
    span_s = float(times[-1] - times[0])
    return WorkloadStats(
        requests=len(w),
        sessions=int(w.session.max()) + 1,
        span_s=span_s,
        rate=len(times) / span_s if span_s > 0 else None,
        gap_cv=float(gaps.std() / gaps.mean()) if span_s > 0 else None,
        most_in_1_s=_fullest_second(times),
        prompt=_length_stats(w.prompt_tokens),
        output=_length_stats(w.output_tokens),
        history_share=float(w.history_tokens.sum() / w.prompt_tokens.sum()),
        block_reuse=_reuse(w.block_ids),
    )


def _length_stats(tokens: IntArray) -> LengthStats:
    p50, p95 = np.percentile(tokens, [50, 95])
    return LengthStats(float(tokens.mean()), float(p50), float(p95), int(tokens.max()))


def _fullest_second(times: FloatArray) -> int:
    return int(np.unique(np.floor(times), return_counts=True)[1].max())


def _reuse(ids: IntArray) -> float | None:
    return 1 - (int(ids.max()) + 1) / len(ids) if len(ids) else None
