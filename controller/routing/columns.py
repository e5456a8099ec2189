# SPDX-License-Identifier: Apache-2.0
"""What a router knows of decode workers, as two blocks of numbers, and a copy of them at once.

Owns: which row is what, the copy. Does not own: who writes them
(controller.runtime.router.decode_state).

Times, shape (3, workers): windowed ITL, the instant from which that may differ, until when its
local prefills keep it busy. Counts, shape (4, workers): local prefills, running decodes, their KV
tokens, KV tokens bound to it.
"""

from __future__ import annotations

import numpy as np

from controller.costs.compiled import compiled
from controller.types import FloatArray, IntArray


def snapshot(
    times_s: FloatArray, counts: IntArray, now_s: float
) -> tuple[FloatArray, IntArray, bool]:
    """(ITL windows and what is left of the local prefills, counts, whether a window is old).

    What is bound to a worker counts as no less than what it reports: other routers bind too.
    """
    seen_s, copied = np.empty((2, times_s.shape[1])), np.empty_like(counts)
    stale = _copy(times_s, counts, now_s, seen_s, copied)
    return seen_s, copied, stale


@compiled
def _copy(
    times_s: FloatArray, counts: IntArray, now_s: float, seen_s: FloatArray, copied: IntArray
) -> bool:
    stale = False
    for i in range(times_s.shape[1]):
        seen_s[0, i] = times_s[0, i]
        seen_s[1, i] = max(0.0, times_s[2, i] - now_s)
        stale |= times_s[1, i] <= now_s
        for k in range(3):
            copied[k, i] = counts[k, i]
        copied[3, i] = max(counts[2, i], counts[3, i])
    return stale
