# SPDX-License-Identifier: Apache-2.0
"""A run second by second.

Owns: what is sampled while it runs (busy time of the pools), and what is counted afterwards from
the times of the requests, exactly at the ends of the bins. Does not own: the run, files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from controller.errors import UserError
from controller.simulation.cluster.result import SimResult
from controller.simulation.cluster.simulate import Simulation
from controller.simulation.cluster.spec import Status
from controller.simulation.report.parts import prefill_end_s
from controller.types import FloatArray, IntArray

MOST_BINS = 1_000_000


@dataclass(frozen=True, eq=False)
class Samples:
    """Busy seconds of a pool's workers by the end of each bin, mean over them: shape (bins,)."""

    step_s: float
    busy_prefill_s: FloatArray
    busy_decode_s: FloatArray


def run_in_pieces(simulation: Simulation, step_s: float, after: Callable[[float], None]) -> None:
    """Run to the end; `after` hears of every `step_s` of the run's time."""
    until_s = simulation.options.until_s
    piece, more = 0, True
    while more:
        piece += 1
        at_s = min(step_s * piece, until_s)
        more = simulation.advance(at_s) and at_s < until_s
        after(at_s)


def run_sampled(
    simulation: Simulation, step_s: float, progress: Callable[[float], None] = lambda at_s: None
) -> Samples:
    """Run to the end in bins of `step_s`; `progress` hears of each. UserError for too many."""
    prefill: list[float] = []
    decode: list[float] = []
    first = len(simulation.cluster.prefill)

    def sample(at_s: float) -> None:
        busy_s = _busy_s(simulation, at_s)
        prefill.append(float(busy_s[:first].mean()) if first else math.nan)
        decode.append(float(busy_s[first:].mean()))
        if len(decode) > MOST_BINS:
            raise UserError(
                f"the run lasts longer than {MOST_BINS:,} bins of {step_s:g} s; give a larger "
                "--series-step or --until"
            )
        progress(at_s)

    run_in_pieces(simulation, step_s, sample)
    return Samples(step_s, np.array(prefill), np.array(decode))


def _busy_s(simulation: Simulation, at_s: float) -> FloatArray:
    """(workers,) time in steps until `at_s`, the running ones' own time included."""
    workers = simulation.state.wrk
    running_s = np.where(workers["busy"] > 0, np.maximum(at_s - workers["start_s"], 0.0), 0.0)
    busy: FloatArray = workers["busy_s"] + running_s
    return busy


def time_series(result: SimResult, samples: Samples) -> dict[str, Any]:
    """Columns of shape (bins,); a bin is [time_s, time_s + step).

    Counts of who is where are at the end of the bin and leave out rejected and failed requests.
    TTFTs are those of the first tokens that came in the bin (p95 by nearest rank).
    """
    step_s, bins = samples.step_s, len(samples.busy_decode_s)
    ends_s = np.arange(1, bins + 1, dtype=np.float64) * step_s
    there = np.isin(result.status, [Status.SERVED.value, Status.UNFINISHED.value])
    prefilled_s = prefill_end_s(result)
    # A prefill that was done again after the first token counts in flight and decoding only.
    once = ~(prefilled_s > result.first_token_s) & ~(result.prefill_start_s > result.first_token_s)

    def inside(starts_s: FloatArray, stops_s: FloatArray, of: Any = True) -> IntArray:
        rows = there & of
        count: IntArray = _passed(starts_s[rows], ends_s) - _passed(stops_s[rows], ends_s)
        return count

    ttft_mean, ttft_p95 = _ttft_ms(result, step_s, bins)
    return {
        "time_s": ends_s - step_s,
        "arrivals": _counts(result.arrival_s, step_s, bins),
        "first_tokens": _counts(result.first_token_s, step_s, bins),
        "finished": _counts(result.finish_s, step_s, bins),
        "in_flight": inside(result.arrival_s, result.finish_s),
        "router_queue": inside(result.queued_s, result.sent_s, once),
        "waiting_or_prefilling": inside(result.sent_s, prefilled_s, once),
        "transferring_or_admitting": inside(prefilled_s, result.first_token_s, once),
        "decoding": inside(result.first_token_s, result.finish_s),
        "utilisation_prefill": np.diff(samples.busy_prefill_s, prepend=0.0) / step_s,
        "utilisation_decode": np.diff(samples.busy_decode_s, prepend=0.0) / step_s,
        "ttft_mean_ms": ttft_mean,
        "ttft_p95_ms": ttft_p95,
    }


def _passed(times_s: FloatArray, ends_s: FloatArray) -> IntArray:
    """How many of the times lie before each end; NaN never comes."""
    known = np.sort(times_s[~np.isnan(times_s)])
    return np.searchsorted(known, ends_s, side="left").astype(np.int64)


def _bin_of(times_s: FloatArray, step_s: float, bins: int) -> IntArray:
    """Those in range only, in the order of `times_s`."""
    return np.minimum(times_s / step_s, bins - 1).astype(np.int64)


def _counts(times_s: FloatArray, step_s: float, bins: int) -> IntArray:
    known = times_s[~np.isnan(times_s)]
    return np.bincount(_bin_of(known, step_s, bins), minlength=bins).astype(np.int64)


def _ttft_ms(result: SimResult, step_s: float, bins: int) -> tuple[FloatArray, FloatArray]:
    known = ~np.isnan(result.first_token_s)
    place = _bin_of(result.first_token_s[known], step_s, bins)
    ttft_ms = result.ttft_s[known] * 1e3
    order = np.lexsort((ttft_ms, place))
    counts = np.bincount(place, minlength=bins)
    mean, p95 = np.full(bins, np.nan), np.full(bins, np.nan)
    some = counts > 0
    sums = np.bincount(place, weights=ttft_ms, minlength=bins)
    mean[some] = sums[some] / counts[some]
    rank = np.ceil(0.95 * counts[some]).astype(np.int64) - 1
    first = (np.cumsum(counts) - counts)[some]
    p95[some] = ttft_ms[order][first + rank]
    return mean, p95
