# SPDX-License-Identifier: Apache-2.0
"""Gaps between the tokens of each request, from logged steps and stints.

Owns: p99 and largest gap of a request; where in the log its tokens are. Does not own: what is
logged (steps.py, explicit.py), the distribution over all tokens (token_gaps.py).

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

# Columns of `Runs.row`: what a run of decode steps is, one cache line each.
STEP = 0  # steps of the worker before it
N = 1
START_S = 2
FIRST_S = 3
SLOPE_S = 4
END_S = 5
INTO_S = 6  # its first token after the last one of the run before
_COLUMNS = 8


class Runs(NamedTuple):
    """Logged runs of decode steps by worker, in order; `first[w]` is where worker w's begin."""

    first: IntArray  # (workers + 1,)
    row: FloatArray  # (runs, columns)


def sorted_runs(s: at.State) -> Runs:
    """The log of a state, worker by worker."""
    log = s.log[: s.ctl[at.LOG_USED]]
    counts = np.bincount(log["worker"], minlength=len(s.wrk))
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    row = np.empty((len(log), _COLUMNS))
    _fill(log, first[:-1].copy(), row)
    return Runs(first, row)


@njit(cache=True, nogil=True)
def _fill(log: Any, free: IntArray, row: FloatArray) -> None:
    """`free[w]` is where the next run of worker w goes."""
    last_s = np.zeros(free.size)
    for entry in log:
        run = row[free[entry.worker]]
        free[entry.worker] += 1
        run[STEP], run[N] = entry.step, entry.n
        run[START_S], run[FIRST_S], run[SLOPE_S] = entry.start_s, entry.first_s, entry.slope_s
        run[END_S] = entry.start_s + after_s(run, entry.n)
        run[INTO_S] = entry.start_s + after_s(run, 1) - last_s[entry.worker]
        last_s[entry.worker] = run[END_S]


def request_gaps(s: at.State) -> tuple[FloatArray, FloatArray]:
    """(p99 gap, largest gap) of every request that has ended, shape (n,); NaN for fewer than two
    tokens. The p99 interpolates linearly between order statistics, as numpy does."""
    req = s.req
    most = int(req["output"].max(initial=1))
    p99_s, most_s = np.full(len(req), np.nan), np.full(len(req), np.nan)
    rows = np.flatnonzero(req["status"] == at.SERVED_)
    _request_gaps(
        rows,
        bool((s.wrk["emit_num"] > s.wrk["emit_den"]).any()),
        req,
        s.stint,
        sorted_runs(s),
        np.zeros(max(2, most // 100 + 3)),
        np.zeros((most + 2, 3)),
        np.zeros(len(s.wrk), np.int64),
        p99_s,
        most_s,
    )
    return p99_s, most_s


@njit(cache=True, nogil=True)
def _request_gaps(
    rows: Any,
    bursts: bool,
    req: Any,
    stints: Any,
    runs: Runs,
    top: FloatArray,
    spans: FloatArray,
    near: IntArray,
    p99_s: FloatArray,
    most_s: FloatArray,
) -> None:
    """`near[w]` is the run of worker w at which the search for the next one begins.

    With `bursts` a step may bring several tokens: the gaps between these are 0.
    """
    for r in rows:
        gaps = req[r].output - 1
        if gaps < 1:
            continue
        below = int((gaps - 1) * 0.99)
        keep = gaps - below
        held = _largest_gaps(req[r], stints, runs, top, keep, spans, near)
        share = (gaps - 1) * 0.99 - below
        high = top[keep - 2] if keep > 1 else top[keep - 1]
        p99_s[r] = top[keep - 1] + (high - top[keep - 1]) * share
        most_s[r] = top[0]
        if held > gaps or (held < gaps and not bursts):
            p99_s[r] = most_s[r] = np.nan


@njit(cache=True, nogil=True)
def _largest_gaps(
    q: Any, stints: Any, runs: Runs, top: FloatArray, keep: int, spans: FloatArray, near: IntArray
) -> int:
    """The `keep` largest gaps of a request into `top`, largest first; returns how many it has."""
    count = stints_in_order(q, stints, spans)
    for k in range(keep):
        top[k] = 0.0
    before_s, gaps = -1.0, 0
    for k in range(count):
        token_s, low, high = spans[k, 0], int(spans[k, 1]), int(spans[k, 2])
        w = worker_of(q, stints, count - 1 - k)
        if token_s >= 0.0:
            if before_s >= 0.0:
                _keep(top, keep, token_s - before_s)
                gaps += 1
            before_s = token_s
        if high >= low:
            near[w] = run_with(runs, w, low, near[w])
            gaps += high - low + (before_s >= 0.0)
            before_s = _walk(runs.row, near[w], low, high, before_s, top, keep)
    return gaps


@njit(cache=True, nogil=True)
def stints_in_order(q: Any, stints: Any, spans: FloatArray) -> int:
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
def worker_of(q: Any, stints: Any, back: int) -> int:
    """Worker of the stint that is `back` before the last one."""
    if back == 0:
        return q.decode_worker
    at_ = q.stints
    for _ in range(back - 1):
        at_ = stints[at_].before
    return stints[at_].worker


@njit(cache=True, nogil=True)
def _walk(
    row: FloatArray, i: int, low: int, high: int, before_s: float, top: FloatArray, keep: int
) -> float:
    """Tokens at the ends of steps low..high, of which run i holds the first; time of the last."""
    run = row[i]
    first = low - run[STEP]
    last = min(high - run[STEP], run[N])
    if before_s >= 0.0:
        _keep(top, keep, run[START_S] + after_s(run, first) - before_s)
    _keep_run(run, first, last, top, keep)
    while run[STEP] + run[N] < high:
        i += 1
        run = row[i]
        last = min(high - run[STEP], run[N])
        if run[INTO_S] > top[keep - 1]:
            _keep(top, keep, run[INTO_S])
        if run[FIRST_S] + run[SLOPE_S] * (last - 1.0) > top[keep - 1]:
            _keep_run(run, 1.0, last, top, keep)
    return float(run[START_S] + after_s(run, last))


@njit(cache=True, nogil=True)
def _keep_run(run: FloatArray, first: float, last: float, top: FloatArray, keep: int) -> None:
    """The gaps that steps first+1..last of a run end; they grow, so the last is the largest."""
    j = last
    while j > first:
        gap_s = run[FIRST_S] + run[SLOPE_S] * (j - 1.0)
        if gap_s <= top[keep - 1]:
            return
        _keep(top, keep, gap_s)
        j -= 1.0


@njit(cache=True, nogil=True)
def after_s(run: FloatArray, j: float) -> float:
    """Time of the first j steps of a run."""
    return float(j * run[FIRST_S] + run[SLOPE_S] * (0.5 * j * (j - 1)))


@njit(cache=True, nogil=True)
def run_with(runs: Runs, w: int, step: int, near: int) -> int:
    """The run of worker w with its `step`-th step, counted from 1; likely not far from `near`."""
    first, last = runs.first[w], runs.first[w + 1] - 1
    low = high = min(max(near, first), last)
    reach = 1
    while high < last and runs.row[high + 1, STEP] < step:
        low = high + 1
        high = min(high + reach, last)
        reach *= 2
    reach = 1
    while low > first and runs.row[low, STEP] >= step:
        high = low - 1
        low = max(low - reach, first)
        reach *= 2
    while low < high:
        middle = (low + high + 1) // 2
        if runs.row[middle, STEP] < step:
            low = middle
        else:
            high = middle - 1
    return int(low)


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
