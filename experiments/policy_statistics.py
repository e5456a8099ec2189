# SPDX-License-Identifier: Apache-2.0
"""Statistics of compare_policies.py: curves over loads, the rate sustained, paired differences.

Owns: pure functions of rows that were measured. Does not own: runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import isotonic_regression

from controller.types import FloatArray

TARGET = 0.9
LONGEST_DECILE = 0.8


def falling(values: FloatArray) -> FloatArray:
    """The nearest curve that never rises with the load, shape (loads,)."""
    fitted: FloatArray = np.asarray(isotonic_regression(values, increasing=False).x)
    return fitted


def crossing(rates: FloatArray, values: FloatArray, target: float) -> float:
    """The rate at which a falling curve passes the target, linear between rates.

    The first rate if even that is below; the last one if none is: then it is a lower bound.
    """
    curve = falling(values)
    below = np.flatnonzero(curve < target)
    if not len(below):
        return float(rates[-1])
    i = int(below[0])
    if i == 0:
        return float(rates[0]) * float(curve[0] / target)
    high, low = curve[i - 1], curve[i]
    share = float((high - target) / (high - low))
    return float(rates[i - 1] + share * (rates[i] - rates[i - 1]))


def r90(
    rates: FloatArray, attainment: FloatArray, longest: FloatArray, sustained: Sequence[bool]
) -> float:
    """The rate sustained (evaluation rule 8). Arrays of shape (loads, seeds); rates ascend."""
    rate = min(
        crossing(rates, attainment.mean(axis=1), TARGET),
        crossing(rates, longest.mean(axis=1), LONGEST_DECILE),
    )
    growing = [float(r) for r, fine in zip(rates, sustained, strict=True) if not fine]
    return min([rate, *[r for r in growing if r >= rates[0]]]) if growing else rate


def bootstrap_ratio(
    of: tuple[FloatArray, FloatArray],
    to: tuple[FloatArray, FloatArray],
    rates: FloatArray,
    fine: tuple[Sequence[bool], Sequence[bool]],
    seed: int = 0,
    draws: int = 400,
) -> tuple[float, float, float]:
    """(ratio of two R90s, 95 % interval over seeds): each side (attainment, longest decile)."""
    rng = np.random.default_rng(seed)
    seeds = of[0].shape[1]

    def ratio(columns: FloatArray) -> float:
        top = r90(rates, of[0][:, columns], of[1][:, columns], fine[0])
        return top / max(1e-9, r90(rates, to[0][:, columns], to[1][:, columns], fine[1]))

    found = [ratio(rng.integers(seeds, size=seeds)) for _ in range(draws)]
    low, high = np.percentile(found, [2.5, 97.5])
    return ratio(np.arange(seeds)), float(low), float(high)
