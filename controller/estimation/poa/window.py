# SPDX-License-Identifier: Apache-2.0
"""A few consecutive placements as a scheduling problem: what each place would have cost.

Owns: the value. Does not own: where it is read from (from_log.py, from_trace.py), what is
made of it (loss.py).

A *place* is a prefill worker, or a decode worker that prefills itself. At the window's start place
j has `free_s[j]` seconds of recorded work ahead. Request i arrives `arrival_s[i]` later and would
take `own_s[i, j]` there; `harm_s[i, j]` is what that costs others in seconds of latency (running
decodes that a local prefill delays), `harm_misses[i, j]` the same in SLO misses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PlacementWindow:
    """n requests in the order of their arrival, m places. Seconds from the window's start."""

    arrival_s: FloatArray
    """(n,) ascending from 0."""
    own_s: FloatArray
    """(n, m) service time; infinite where the place is no option."""
    limit_s: FloatArray
    """(n,) TTFT limits."""
    chosen: IntArray
    """(n,) the place that was taken."""
    free_s: FloatArray
    """(m,) recorded work ahead at the window's start."""
    harm_s: FloatArray
    """(n, m)"""
    harm_misses: FloatArray
    """(n, m)"""
    end_s: float
    """End of the window: what is left then delays those who come after."""
    rate_per_s: float
    """Arrivals a second and place that the leftover work delays."""

    @property
    def requests(self) -> int:
        """n."""
        return len(self.arrival_s)

    @property
    def places(self) -> int:
        """m."""
        return len(self.free_s)


def make_window(
    arrival_s: FloatArray,
    own_s: FloatArray,
    limit_s: FloatArray,
    chosen: IntArray,
    free_s: FloatArray,
    *,
    harm_s: FloatArray | None = None,
    harm_misses: FloatArray | None = None,
    end_s: float | None = None,
    rate_per_s: float | None = None,
) -> PlacementWindow:
    """Fills in what follows: no harm; a window that lasts n mean gaps; the window's own rate.

    ValueError when shapes disagree or a request was placed where it could not be.
    """
    count, places = own_s.shape
    shapes = (arrival_s.shape, limit_s.shape, chosen.shape)
    if any(shape != (count,) for shape in shapes) or free_s.shape != (places,) or count == 0:
        raise ValueError("the columns of a window do not agree")
    if not np.isfinite(own_s[np.arange(count), chosen]).all():
        raise ValueError("a request was placed where it could not be")
    span_s = float(arrival_s[-1] - arrival_s[0])
    gap_s = span_s / (count - 1) if count > 1 else 0.0
    lasts_s = end_s if end_s is not None else float(arrival_s[-1]) + gap_s
    rate = rate_per_s if rate_per_s is not None else (1.0 / gap_s / places if gap_s > 0 else 0.0)
    none = np.zeros((count, places))
    columns = (arrival_s, own_s, limit_s, free_s, *(none if h is None else h
                                                     for h in (harm_s, harm_misses)))  # fmt: skip
    at, own, limit, free, harm, misses = (np.ascontiguousarray(c, np.float64) for c in columns)
    return PlacementWindow(
        at, own, limit, np.ascontiguousarray(chosen, np.int64), free, harm, misses, lasts_s, rate
    )
