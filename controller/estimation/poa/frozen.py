# SPDX-License-Identifier: Apache-2.0
"""The price-of-anarchy paper's index, `poa_frozen`, and its author's per-placement regret.

Kept for comparison only: an index over frozen costs is nearly blind to routing (pilots: rank
correlation with the true ratio about -0.1) and can be below 1, since a perfect matching must use
every engine. The paper's own formula was not available; this is the one runnable definition by its
author, from a later study: windows of as many consecutive arrivals as there are engines,

    cost(r, e) = own(r, e) * (1 + resident(e, t)),    t the first arrival of the window,

resident the work that e holds at t; the numerator is the sum over what was done, the denominator
the least sum over a perfect matching (Hungarian method; ceil(N/m) slots an engine when N > m).
Reported: the ratio of sums, and p50, p90, max of the windows' ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from controller.estimation.poa.window import PlacementWindow
from controller.types import FloatArray

_FAR = 1e12


@dataclass(frozen=True, slots=True)
class Frozen:
    """None without a window."""

    ratio_of_sums: float | None
    p50: float | None
    p90: float | None
    max: float | None
    regret_p50: float | None
    """Median over placements of cost(chosen) over the least cost: the author's online gauge."""
    windows: int


def frozen_costs(window: PlacementWindow) -> FloatArray:
    """(n, m) costs with everything as at the window's start."""
    with np.errstate(invalid="ignore"):
        costs: FloatArray = window.own_s * (1.0 + window.free_s[None, :])
    return np.where(np.isfinite(costs), costs, _FAR)


def frozen_costs_ratio(window: PlacementWindow) -> tuple[float, float]:
    """(cost of what was done, least cost of a matching)."""
    costs = frozen_costs(window)
    done = float(costs[np.arange(window.requests), window.chosen].sum())
    slots = np.tile(costs, (1, -(-window.requests // window.places)))
    return done, float(slots[linear_sum_assignment(slots)].sum())


def frozen_index(windows: Sequence[PlacementWindow]) -> Frozen:
    """Over windows of as many requests as places (others count with their slots)."""
    if not windows:
        return Frozen(None, None, None, None, None, 0)
    pairs = np.array([frozen_costs_ratio(window) for window in windows])
    ratios = pairs[:, 0] / pairs[:, 1]
    regrets = np.concatenate([regret(window) for window in windows])
    p50, p90 = np.quantile(ratios, [0.5, 0.9])
    return Frozen(
        ratio_of_sums=float(pairs[:, 0].sum() / pairs[:, 1].sum()),
        p50=float(p50),
        p90=float(p90),
        max=float(ratios.max()),
        regret_p50=float(np.median(regrets)),
        windows=len(windows),
    )


def regret(window: PlacementWindow) -> FloatArray:
    """(n,) frozen cost of the chosen place over the least."""
    costs = frozen_costs(window)
    chosen = costs[np.arange(window.requests), window.chosen]
    least: FloatArray = costs.min(axis=1)
    return chosen / least
