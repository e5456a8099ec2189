# SPDX-License-Identifier: Apache-2.0
"""Passes compared with earlier passes of the same kind of step, whatever the fit says of them.

Pure. Owns: which passes are alike, and how their residuals differ. Does not own: what a residual
is, when a difference is a change of speed (live_drift).

A young fit is wrong by a fifth at one batch and right at the next one (mixtures of experts jump at
CUDA graph sizes), and does not know how times rise with a context that it has not seen. When the
traffic moves there, all passes seem slow at once. What tells this from a slower worker is that
passes alike, from before, took just as long. Of two estimates of a difference, by residuals and by
the times themselves, the first is exact where the fit's slopes are right, the second errs only by
what passes alike may differ: where they disagree the smaller one counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from controller.costs.live_passes import Pass, Shape

_FEWEST = 3  # earlier passes whose median one outlier cannot make
_BATCH_SHARE = 1 / 32  # relative differences of passes that are alike
_SIZE_SHARE = 1 / 8
_SIZE_TOKENS = 64  # context that is nothing beside the rest of a step
_AGREE = 0.04  # logarithms that differ by less say the same
_FEW = 10  # passes whose median says something

Logs = Mapping[Shape, Sequence[tuple[Pass, float]]]
"""Passes with their residuals, by stratum."""


def contrast(passes: Iterable[tuple[Pass, float]], known: Logs, before_s: float) -> float | None:
    """Logarithm of how much longer passes take than those alike from before that time.

    Passes that have fewer than three alike say nothing; None if fewer than ten are left.
    """
    by_fit, by_time = [], []
    for one, value in passes:
        others = known.get(one.stratum, ())
        pairs = [each for each in others if each[0].at_s < before_s and alike(one, each[0])]
        if len(pairs) >= _FEWEST:
            by_fit.append(value - median(each for _, each in pairs))
            before = median(math.log(other.wall_s) for other, _ in pairs)
            by_time.append(math.log(one.wall_s) - before)
    return _agreed(median(by_fit), median(by_time)) if len(by_fit) >= _FEW else None


def _agreed(by_fit: float, by_time: float) -> float:
    if abs(by_fit - by_time) <= _AGREE:
        return by_fit
    if by_fit * by_time <= 0.0:
        return 0.0
    return min(by_fit, by_time, key=abs)


def alike(one: Pass, other: Pass) -> bool:
    """Whether two passes of a stratum must take the same time but for a few per cent."""
    return (
        abs(one.batch - other.batch) <= _BATCH_SHARE * one.batch
        and abs(one.chunk - other.chunk) <= _SIZE_SHARE * one.chunk
        and _near(one.context, other.context, one.batch)
        and _near(one.history, other.history, one.prefills)
    )


def _near(tokens: int, others: int, sequences: int) -> bool:
    return abs(tokens - others) <= _SIZE_SHARE * tokens + _SIZE_TOKENS * sequences
