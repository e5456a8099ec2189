# SPDX-License-Identifier: Apache-2.0
"""Chance for compiled rules: 63 bits a decision, spun on by SplitMix64 where a rule needs more.

Owns: the generator (Steele, Lea, Flood 2014). It has no state of its own: the n-th number of a
seed is a function of both, so a decision can be repeated alone, live or simulated.
"""

from __future__ import annotations

import numpy as np

from controller.costs.compiled import compiled
from controller.types import IntArray

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


@compiled
def bits(seed: int, count: int) -> np.uint64:
    """The `count`-th 64 random bits of a seed."""
    z = np.uint64(seed) + _STEP * np.uint64(count + 1)
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


@compiled
def decision_draw(seed: int, decision: int) -> int:
    """The random bits of one decision: 63 of them, so that every caller can hold them."""
    return np.int64(bits(seed, decision) >> np.uint64(1))


@compiled
def below(draw: int, count: int, n: int) -> int:
    """The `count`-th number in [0, n) of a decision's bits."""
    return np.int64(bits(draw, count) % np.uint64(n))


@compiled
def shuffle(order: IntArray, n: int, draw: int) -> None:
    """Fill order[:n] with 0..n-1 in random order."""
    for i in range(n):
        order[i] = i
    for i in range(n - 1, 0, -1):
        j = below(draw, i, i + 1)
        order[i], order[j] = order[j], order[i]
