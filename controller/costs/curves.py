# SPDX-License-Identifier: Apache-2.0
"""Piecewise linear curves through noisy measurements of one variable.

Owns: the fit with its choice of breakpoints, sums of curves, making a curve monotone. Does not own:
what a curve means.

Measurements of one kernel need not be monotone (a library changes its kernel at some size), so
single curves follow them; what becomes a table of the cost model goes through `rising`. Errors are
relative throughout. Points that stand out of both neighbours are outliers; breakpoints are kept
where dropping one would change the curve by more than the tolerance (Douglas-Peucker).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from controller.costs.tables import Floats, vector

_OUTLIER = 0.1  # relative distance from the median of a point and its two neighbours


@dataclass(frozen=True, slots=True)
class Curve:
    """Values at ascending points; constant before the first, the last slope continues after."""

    at: Floats
    value: Floats

    def __call__(self, at: Floats | float) -> Floats:
        """The curve at points of any shape."""
        points = np.asarray(at, dtype=np.float64)
        inside = np.interp(points, self.at, self.value)
        if len(self.at) < 2:
            return inside
        rise = (self.value[-1] - self.value[-2]) / (self.at[-1] - self.at[-2])
        beyond: Floats = inside + np.maximum(points - self.at[-1], 0.0) * max(0.0, rise)
        return beyond


def fit_curve(at: Sequence[float] | Floats, value: Floats, tolerance: float = 0.005) -> Curve:
    """A curve through positive values (n,) measured at (n,), repeats allowed."""
    points, groups = np.unique(vector(at), return_inverse=True)
    middle = np.array([np.median(value[groups == i]) for i in range(len(points))])
    around = middle.copy()
    if len(points) > 2:
        around[1:-1] = np.median([middle[:-2], middle[1:-1], middle[2:]], axis=0)
    smooth = np.where(np.abs(middle / around - 1.0) > _OUTLIER, around, middle)
    keep = breakpoints(points, smooth, tolerance)
    return Curve(points[keep], smooth[keep])


def rising(curve: Curve) -> Curve:
    """The closest curve that does not fall, by isotonic regression of the logarithms."""
    return Curve(curve.at, np.exp(isotonic_regression(np.log(curve.value)).x))


def breakpoints(at: Floats, value: Floats, tolerance: float) -> np.ndarray:
    """Indices of the points that a piecewise linear curve needs to stay within `tolerance`."""
    keep = {0, len(at) - 1}
    spans = [(0, len(at) - 1)]
    while spans:
        first, last = spans.pop()
        if last - first < 2:
            continue
        inner = slice(first + 1, last)
        drawn = np.interp(at[inner], at[[first, last]], value[[first, last]])
        error = np.abs(drawn / value[inner] - 1.0)
        worst = int(np.argmax(error))
        if error[worst] > tolerance:
            middle = first + 1 + worst
            keep.add(middle)
            spans += [(first, middle), (middle, last)]
    return np.array(sorted(keep))


def weighted_sum(parts: Iterable[tuple[float, Curve]], tolerance: float = 0.002) -> Curve:
    """The sum of weight * curve, on the points that any of the curves needs."""
    kept = [(weight, curve) for weight, curve in parts if weight]
    points = np.unique(np.concatenate([curve.at for _, curve in kept]))
    total = np.sum([weight * curve(points) for weight, curve in kept], axis=0)
    keep = breakpoints(points, total, tolerance)
    return Curve(points[keep], total[keep])
