# SPDX-License-Identifier: Apache-2.0
"""Placement rules over estimates and windows.

Owns: AMPD's Algorithm 1 and the baselines, each a function of numbers that both callers have.
Does not own: the estimates (Eq. 1 and Eq. 2: controller.routing.ampd for the live router,
controller.simulation.cluster.estimates for the simulator).

Kernels allocate nothing. Ties go to local, then to the lower index. `remote_s` is not empty: an
empty prefill pool is decided before a rule is asked (controller.routing.registry.decide).
"""

from __future__ import annotations

import math

from controller.costs.compiled import compiled
from controller.routing.kernels.draws import shuffle
from controller.routing.kernels.reasons import (
    ARGMIN_LOCAL,
    ARGMIN_REMOTE,
    DECODE_SLACK,
    LEAST_LOADED,
    LEAST_TTFT_LOCAL,
    LEAST_TTFT_REMOTE,
    LOCAL,
    NO_DECODE_WORKER,
    PREFILL_SLACK,
    ROUND_ROBIN,
)
from controller.types import FloatArray, IntArray


@compiled
def least(values: FloatArray) -> int:
    """Index of the first least value."""
    best = 0
    for i in range(1, values.size):
        if values[i] < values[best]:
            best = i
    return best


@compiled
def within(window_s: float, limit_s: float) -> bool:
    """Whether a window leaves slack; an empty one (NaN) does."""
    return math.isnan(window_s) or window_s <= limit_s


@compiled
def first_with_slack(ttft_window_s: FloatArray, limit_s: float, draw: int, order: IntArray) -> int:
    """Algorithm 1, lines 1-2: the first prefill worker with slack in random order, or -1.

    `order` is room for as many numbers as there are workers.
    """
    n = ttft_window_s.size
    shuffle(order, n, draw)
    for i in range(n):
        if within(ttft_window_s[order[i]], limit_s):
            return int(order[i])
    return -1


@compiled
def least_estimate(remote_s: FloatArray, local_s: float) -> tuple[int, int]:
    """Algorithm 1, last line: argmin of Eq. 1 and Eq. 2. `local_s` is NaN: no decode worker."""
    best = least(remote_s)
    if math.isnan(local_s):
        return best, NO_DECODE_WORKER
    if local_s <= remote_s[best]:
        return LOCAL, ARGMIN_LOCAL
    return best, ARGMIN_REMOTE


@compiled
def slack(
    ttft_window_s: FloatArray,
    itl_window_s: float,
    bound: bool,
    ttft_limit_s: float,
    itl_limit_s: float,
    draw: int,
    order: IntArray,
) -> tuple[int, int]:
    """Algorithm 1 without its last line: (choice, reason); reason -1 when nobody has slack.

    The limits are alpha * TTFT and beta * ITL; `bound` says whether a decode worker is known;
    `order` is room for as many numbers as there are prefill workers. The test of the decode
    worker lies outside the loop over prefill workers.
    """
    i = first_with_slack(ttft_window_s, ttft_limit_s, draw, order)
    if i >= 0:
        return i, PREFILL_SLACK
    if bound and within(itl_window_s, itl_limit_s):
        return LOCAL, DECODE_SLACK
    return LOCAL, -1


@compiled
def always_remote(remote_s: FloatArray) -> tuple[int, int]:
    """The prefill worker that would finish first."""
    return least(remote_s), LEAST_LOADED


@compiled
def round_robin(workers: int, turn: int) -> tuple[int, int]:
    """Prefill workers in turn."""
    return turn % workers, ROUND_ROBIN


@compiled
def least_ttft(remote_s: FloatArray, local_s: float) -> tuple[int, int]:
    """The place with the least predicted TTFT. `local_s` is NaN without a decode worker.

    Unlike Eq. 1 and Eq. 2 the estimates go up to the first token: the decode batch beside a
    local prefill, the transfer and the first decode step behind a remote one are in them.
    """
    best = least(remote_s)
    if not math.isnan(local_s) and local_s <= remote_s[best]:
        return LOCAL, LEAST_TTFT_LOCAL
    return best, LEAST_TTFT_REMOTE
