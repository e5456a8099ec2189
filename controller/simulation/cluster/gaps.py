# SPDX-License-Identifier: Apache-2.0
"""Gaps between the tokens of each request, from logged steps and stints.

Owns: mean, p99 and largest gap of a request; the distribution over all tokens. Does not own: what
is logged (steps.py, explicit.py).

A request's tokens are *stints*: maybe one token that came with the end of a prefill, then one at
the end of each of consecutive decode steps of one worker. The steps are logged in runs
(start, first, slope, n), so nothing is kept per token, and still every gap is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from controller.simulation.cluster import state as at
from controller.types import FloatArray, IntArray


class Runs(NamedTuple):
    """Logged runs of decode steps by worker, in order; `first[w]` is where worker w's begin."""

    first: IntArray  # (workers + 1,)
    step: IntArray  # steps of the worker before the run
    n: IntArray
    start_s: FloatArray
    first_s: FloatArray
    slope_s: FloatArray


def sorted_runs(s: at.State) -> Runs:
    """The log of a state, worker by worker."""
    log = s.log[: s.ctl[at.LOG_USED]]
    order = np.argsort(log["worker"], kind="stable")
    log = log[order]
    first = np.searchsorted(log["worker"], np.arange(len(s.wrk) + 1)).astype(np.int64)
    return Runs(
        first,
        np.ascontiguousarray(log["step"]),
        log["n"].astype(np.int64),
        np.ascontiguousarray(log["start_s"]),
        np.ascontiguousarray(log["first_s"]),
        np.ascontiguousarray(log["slope_s"]),
    )


def request_gaps(s: at.State) -> tuple[FloatArray, FloatArray]:
    """(p99 gap, largest gap) of every request that has ended, shape (n,); NaN for fewer than two
    tokens. The p99 interpolates linearly between order statistics, as numpy does."""
    req = s.req
    most = int(req["output"].max(initial=1))
    p99_s, most_s = np.full(len(req), np.nan), np.full(len(req), np.nan)
    rows = np.flatnonzero(req["status"] == at.SERVED_)
    _request_gaps(
        rows,
        req,
        s.stint,
        sorted_runs(s),
        np.zeros(max(2, most // 100 + 3)),
        np.zeros((most + 2, 3)),
        p99_s,
        most_s,
    )
    return p99_s, most_s


@njit(cache=True, nogil=True)
def _request_gaps(
    rows: Any,
    req: Any,
    stints: Any,
    runs: Runs,
    top: FloatArray,
    spans: FloatArray,
    p99_s: FloatArray,
    most_s: FloatArray,
) -> None:
    for r in rows:
        gaps = req[r].output - 1
        if gaps < 1:
            continue
        below = int((gaps - 1) * 0.99)
        keep = gaps - below
        held = _largest_gaps(req[r], stints, runs, top, keep, spans)
        share = (gaps - 1) * 0.99 - below
        high = top[keep - 2] if keep > 1 else top[keep - 1]
        p99_s[r] = top[keep - 1] + (high - top[keep - 1]) * share
        most_s[r] = top[0]
        if held != gaps:
            p99_s[r] = most_s[r] = np.nan


@njit(cache=True, nogil=True)
def _largest_gaps(
    q: Any, stints: Any, runs: Runs, top: FloatArray, keep: int, spans: FloatArray
) -> int:
    """The `keep` largest gaps of a request into `top`, largest first; returns how many it has."""
    count = _stints_in_order(q, stints, spans)
    top[:keep] = -1.0
    before_s, gaps = -1.0, 0
    for k in range(count):
        token_s, low, high = spans[k, 0], int(spans[k, 1]), int(spans[k, 2])
        w = _worker_of(q, stints, count - 1 - k)
        if token_s >= 0.0:
            if before_s >= 0.0:
                _keep(top, keep, token_s - before_s)
                gaps += 1
            before_s = token_s
        if high >= low:
            before_s, seen = _walk(runs, w, low, high, before_s, top, keep)
            gaps += seen
    return gaps


@njit(cache=True, nogil=True)
def _stints_in_order(q: Any, stints: Any, spans: FloatArray) -> int:
    """Stints of a request, first one first: token time, first step, last step."""
    count = 1
    at_ = q.stints
    while at_ >= 0:
        count += 1
        at_ = stints[at_].before
    k = count - 1
    spans[k, 0], spans[k, 1], spans[k, 2] = q.stint_s, q.stint_step, q.end_step
    at_ = q.stints
    while at_ >= 0:
        k -= 1
        spans[k, 0], spans[k, 1], spans[k, 2] = (
            stints[at_].token_s,
            stints[at_].low,
            stints[at_].high,
        )
        at_ = stints[at_].before
    return count


@njit(cache=True, nogil=True)
def _worker_of(q: Any, stints: Any, back: int) -> int:
    """Worker of the stint that is `back` before the last one."""
    if back == 0:
        return q.decode_worker
    at_ = q.stints
    for _ in range(back - 1):
        at_ = stints[at_].before
    return stints[at_].worker


@njit(cache=True, nogil=True)
def _walk(
    runs: Runs, w: int, low: int, high: int, before_s: float, top: FloatArray, keep: int
) -> tuple[float, int]:
    """Tokens at the ends of steps low..high of a worker: (time of the last one, gaps)."""
    i = _run_with(runs, w, low)
    at_, gaps = low, 0
    while at_ <= high:
        first = at_ - runs.step[i]
        last = min(high - runs.step[i], runs.n[i])
        start_s = runs.start_s[i]
        if before_s >= 0.0:
            _keep(top, keep, start_s + _after(runs, i, first) - before_s)
            gaps += 1
        # Within a run gaps grow, so the last ones are the largest.
        for j in range(last, first, -1):
            gap_s = runs.first_s[i] + runs.slope_s[i] * (j - 1)
            if gap_s <= top[keep - 1]:
                break
            _keep(top, keep, gap_s)
        gaps += last - first
        before_s = start_s + _after(runs, i, last)
        at_ = runs.step[i] + last + 1
        i += 1
    return before_s, gaps


@njit(cache=True, nogil=True)
def _after(runs: Runs, i: int, j: int) -> float:
    """Time of the first j steps of a run."""
    return j * runs.first_s[i] + runs.slope_s[i] * (0.5 * j * (j - 1))


@njit(cache=True, nogil=True)
def _run_with(runs: Runs, w: int, step: int) -> int:
    """The run of worker w with its `step`-th step, counted from 1."""
    low, high = runs.first[w], runs.first[w + 1] - 1
    while low < high:
        middle = (low + high + 1) // 2
        if runs.step[middle] < step:
            low = middle
        else:
            high = middle - 1
    return low


@njit(cache=True, nogil=True)
def _keep(top: FloatArray, keep: int, value: float) -> None:
    """Insert into the descending list of the largest values."""
    if value <= top[keep - 1]:
        return
    k = keep - 1
    while k > 0 and top[k - 1] < value:
        top[k] = top[k - 1]
        k -= 1
    top[k] = value
