# SPDX-License-Identifier: Apache-2.0
"""When things happen: clock keys, and the end of the n-th of a run of decode steps.

Owns: the order of instants. Two times are one instant when they have the same key, a whole
nanosecond: sums of floats that should be equal differ in their last bits, and an event that is
late by such a bit must not miss the step it belongs to.
"""

from __future__ import annotations

import math
from typing import Any

from controller.simulation.cluster.compiled import kernel

NEVER = 1 << 62
_LAST_S = 4e9  # a century; later times are one instant


@kernel
def key(at_s: float) -> int:
    """The instant of a time, whole nanoseconds."""
    return int(min(at_s, _LAST_S) * 1e9 + 0.5)


def instant(at_s: float) -> int:
    """The same for Python; NEVER for what the clock does not reach, as infinity."""
    return NEVER if at_s > _LAST_S else int(at_s * 1e9 + 0.5)


@kernel
def steps_s(first_s: float, slope_s: float, n: int) -> float:
    """Time of n steps of which the j-th takes first + slope*(j-1)."""
    return n * first_s + slope_s * (0.5 * n * (n - 1))


@kernel
def steps_until(worker: Any, instant: int) -> int:
    """The first of a worker's planned steps that ends at `instant` or later, at most all of them.

    That is the step after which the worker sees what happened at that instant.
    """
    most = worker.n
    if most <= 1:
        return int(most)
    start_s, first_s, slope_s = worker.start_s, worker.first_s, worker.slope_s
    ahead_s = instant * 1e-9 - start_s
    if ahead_s <= first_s:
        n = 1
    else:
        # Root of n*first + slope*n*(n-1)/2 = ahead, in the form that also holds for slope 0.
        half = max(first_s - 0.5 * slope_s, 1e-15)
        n = int(2.0 * ahead_s / (half + math.sqrt(half * half + 2.0 * slope_s * ahead_s)))
        n = min(max(n, 1), most)
    while n > 1 and key(start_s + steps_s(first_s, slope_s, n - 1)) >= instant:
        n -= 1
    while n < most and key(start_s + steps_s(first_s, slope_s, n)) < instant:
        n += 1
    return int(n)
