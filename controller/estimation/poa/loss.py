# SPDX-License-Identifier: Apache-2.0
"""Routing loss: cost of what was done over the least cost of any assignment of the same arrivals.

Design section 5 ("Price of anarchy, measured"): both sides are replayed by the same law from the
same recorded state, with the leftover at the window's end in it (kernels.py). Enumerated where
there are few assignments; else the best that a local search finds, from what was done and from a
greedy start, which makes the loss a lower bound. Never below 1.

Windows follow one another and are alike, so the interval comes from a block bootstrap: blocks of
consecutive windows are drawn, the ratio of sums is taken of each draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from controller.estimation.poa import kernels
from controller.estimation.poa.window import PlacementWindow
from controller.types import FloatArray, IntArray


class Goal(int, Enum):
    """What is counted. The numbers are those of the kernels."""

    LATENCY = kernels.LATENCY
    """Seconds from arrival to the end of the prefill, summed."""
    MISSES = kernels.MISSES
    """Requests that miss their TTFT limit, and decodes that miss theirs by a local prefill."""


MOST_ENUMERATED = 2500
_PASSES = 2
_TRIES = 6
_BLOCK, _DRAWS = 4, 1000
"""Windows a block of the bootstrap, and its draws."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowLoss:
    """One window's two costs."""

    done: float
    best: float
    exact: bool
    """Whether `best` was enumerated."""
    to: IntArray
    """(n,) an assignment that has it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Over all windows. None where there is nothing to divide by."""

    ratio: float | None
    low: float | None
    high: float | None
    windows: int
    exact_share: float
    excess: float
    """Mean cost a request above the best: seconds, or misses."""


def window_loss(window: PlacementWindow, goal: Goal) -> WindowLoss:
    """Replay one window under `goal`."""
    law = _law(window, goal)
    out = np.zeros(window.places)
    done = kernels.costs_of(window.chosen, law, out)
    best_to = window.chosen.copy()
    if window.places**window.requests <= MOST_ENUMERATED:
        best = kernels.enumerate_best(law, np.zeros(window.requests, np.int64), best_to, out)
        return WindowLoss(done, min(done, best), True, best_to)
    best = kernels.improve(law, best_to, out, _PASSES, _TRIES)
    other = np.zeros(window.requests, np.int64)
    kernels.greedy(law, other, np.zeros(window.places))
    also = kernels.improve(law, other, out, _PASSES, _TRIES)
    if also < best:
        best, best_to = also, other
    return WindowLoss(done, max(0.0, min(done, best)), False, best_to)


def _law(window: PlacementWindow, goal: Goal) -> kernels.Law:
    harm = window.harm_s if goal is Goal.LATENCY else window.harm_misses
    return kernels.Law(
        window.arrival_s,
        window.own_s,
        window.limit_s,
        window.free_s,
        harm,
        window.end_s,
        window.rate_per_s,
        int(goal),
    )


def routing_loss(windows: Sequence[PlacementWindow], goal: Goal, seed: int = 0) -> Loss:
    """Ratio of sums over all windows with a 95 % block-bootstrap interval."""
    found = [window_loss(window, goal) for window in windows]
    return loss_of(
        np.array([each.done for each in found]),
        np.array([each.best for each in found]),
        [each.exact for each in found],
        sum(window.requests for window in windows),
        seed,
    )


def loss_of(
    done: FloatArray, best: FloatArray, exact: Sequence[bool], requests: int, seed: int
) -> Loss:
    """The loss over windows with these costs, (windows,) each; `requests` in all of them."""
    if not len(done):
        return Loss(None, None, None, 0, 0.0, 0.0)
    low, high = block_interval(done, best, seed)
    return Loss(
        ratio=_ratio(float(done.sum()), float(best.sum())),
        low=low,
        high=high,
        windows=len(done),
        exact_share=float(np.mean(exact)),
        excess=float((done - best).sum()) / requests,
    )


def block_interval(
    above: FloatArray, below: FloatArray, seed: int
) -> tuple[float | None, float | None]:
    """95 % interval of sum(above)/sum(below) over blocks of consecutive entries, circular.

    None with fewer than two blocks, or where a draw has nothing to divide by.
    """
    count = len(above)
    if count < 2 * _BLOCK:
        return None, None
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, count, (_DRAWS, -(-count // _BLOCK)))
    picked = ((starts[:, :, None] + np.arange(_BLOCK)) % count).reshape(_DRAWS, -1)[:, :count]
    over, under = above[picked].sum(axis=1), below[picked].sum(axis=1)
    if not (under > 0).all():
        return None, None
    low, high = np.quantile(over / under, [0.025, 0.975])
    return float(low), float(high)


def _ratio(done: float, best: float) -> float | None:
    """1 when nothing was lost and there was nothing to lose."""
    if best > 0:
        return done / best
    return 1.0 if done <= 0 else None
