# SPDX-License-Identifier: Apache-2.0
"""Which decode worker a new session binds to: the one with the least context, near-ties at random.

Owns: the choice. Does not own: the context of each worker, which sessions are bound already.
"""

from __future__ import annotations

from controller.costs.compiled import compiled
from controller.routing.kernels.draws import below
from controller.types import FloatArray, IntArray

NEAR_SHARE = 0.1
NEAR_TOKENS = 256
"""Workers this close to the least loaded one are as good: a draw spreads what arrives together."""


@compiled
def near(least: int) -> int:
    """The context up to which a worker counts as least loaded."""
    return least + max(NEAR_TOKENS, round(least * NEAR_SHARE))


@compiled
def roomiest(behind_s: FloatArray, held: IntArray) -> int:
    """Index of the worker whose local prefills end first, then with the least context; the first.

    Both have shape (workers,), not empty.
    """
    best = 0
    for i in range(1, behind_s.size):
        if behind_s[i] < behind_s[best] or (behind_s[i] == behind_s[best] and held[i] < held[best]):
            best = i
    return best


@compiled
def least_context(context: IntArray, draw: int) -> int:
    """Index of one of the workers with about the least context; shape (workers,), not empty."""
    lowest = context[0]
    for i in range(1, context.size):
        lowest = min(lowest, context[i])
    limit = near(lowest)
    count = 0
    for i in range(context.size):
        count += context[i] <= limit
    chosen = below(draw, 0, count)
    for i in range(context.size):
        if context[i] <= limit:
            if chosen == 0:
                return i
            chosen -= 1
    return 0
