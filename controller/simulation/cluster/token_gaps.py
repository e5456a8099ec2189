# SPDX-License-Identifier: Apache-2.0
"""The distribution of the gaps between tokens, over all tokens of a run.

Owns: the gaps as values with weights. Does not own: gaps by request (gaps.py), what is logged.

A decode step ends as many gaps of its own length as requests take a token before and in it, so
steps are counted, not tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from controller.simulation.cluster import state as at
from controller.simulation.cluster.gaps import (
    FIRST_S,
    INTO_S,
    SLOPE_S,
    START_S,
    STEP,
    N,
    Runs,
    after_s,
    run_with,
    sorted_runs,
    stints_in_order,
    worker_of,
)
from controller.types import FloatArray, IntArray


def token_gaps(s: at.State) -> tuple[FloatArray, FloatArray]:
    """(gap, how many gaps of that length) between tokens of all requests that have ended.

    One entry a decode step that ended such a gap, and one a gap that is no single step (after a
    prefill's token, a preemption, or a wait): at most as many as steps, whatever the batch.
    """
    runs = sorted_runs(s)
    first = np.concatenate([[0], np.cumsum(_steps(runs))]).astype(np.int64)
    opened, odd = (
        np.zeros(int(first[-1]) + 1),
        np.zeros(2 * (len(s.req) + int(s.ctl[at.STINT_USED]))),
    )
    rows = np.flatnonzero(s.req["status"] == at.SERVED_)
    most = int(s.req["output"].max(initial=1))
    count = _count_gaps(rows, s.req, s.stint, runs, first, np.zeros((most + 2, 3)), opened, odd)
    gap_s = np.concatenate([_step_times(runs, int(first[-1])), odd[:count], [0.0]])
    weight = np.concatenate([np.cumsum(opened)[:-1], np.ones(count), [0.0]])
    # Tokens of one step (speculative decoding) come together.
    weight[-1] = np.sum(s.req["output"][rows] - 1) - weight.sum()
    return gap_s[weight > 0], weight[weight > 0]


def _steps(runs: Runs) -> IntArray:
    """(workers,) logged steps of each."""
    passed = np.concatenate([[0.0], np.cumsum(runs.row[:, N])])
    steps: IntArray = np.diff(passed[runs.first]).astype(np.int64)
    return steps


def _step_times(runs: Runs, total: int) -> FloatArray:
    """(total,) from the end of the step before to the end of each step, worker by worker."""
    row = runs.row
    run = np.repeat(np.arange(len(row)), row[:, N].astype(np.int64))
    number = np.arange(total) - (np.cumsum(row[:, N]) - row[:, N])[run]
    times: FloatArray = row[run, FIRST_S] + row[run, SLOPE_S] * number
    times[number == 0] = row[:, INTO_S]
    return times


@njit(cache=True, nogil=True)
def _count_gaps(
    rows: Any,
    req: Any,
    stints: Any,
    runs: Runs,
    first: IntArray,
    spans: FloatArray,
    opened: FloatArray,
    odd: FloatArray,
) -> int:
    """Differences of the weights of steps into `opened`, other gaps into `odd`; their number."""
    used = 0
    for r in rows:
        count = stints_in_order(req[r], stints, spans)
        before_s = -1.0
        for k in range(count):
            token_s, low, high = spans[k, 0], int(spans[k, 1]), int(spans[k, 2])
            w = worker_of(req[r], stints, count - 1 - k)
            if token_s >= 0.0:
                if before_s >= 0.0:
                    odd[used] = token_s - before_s
                    used += 1
                before_s = token_s
            if high < low:
                continue
            if before_s >= 0.0:
                odd[used] = _end_s(runs, w, low) - before_s
                used += 1
            # Step `low` ends a gap that was counted above, or begins the first one.
            opened[first[w] + low] += 1.0
            opened[first[w] + high] -= 1.0
            before_s = _end_s(runs, w, high)
    return used


@njit(cache=True, nogil=True)
def _end_s(runs: Runs, w: int, step: int) -> float:
    """When a worker's step ended."""
    run = runs.row[run_with(runs, w, step, runs.first[w])]
    return float(run[START_S] + after_s(run, step - run[STEP]))
