# SPDX-License-Identifier: Apache-2.0
"""Passes compared with earlier passes of the same kind of step, whatever the fit says of them.

Pure. Owns: which passes are alike, and how their residuals differ. Does not own: what a residual
is, when a difference is a change of speed (live_drift).

A young fit is wrong by a fifth at one batch and right at the next one (mixtures of experts jump at
CUDA graph sizes), and does not know how times rise with a context that it has not seen. When the
traffic moves there, all passes seem slow at once. What tells this from a slower worker is that
passes alike, from before, were just as "slow".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from controller.costs.live_passes import Pass, Shape

_FEWEST = 3  # earlier passes whose median one outlier cannot make
_BATCH_SHARE = 1 / 32  # relative differences of passes that are alike
_SIZE_SHARE = 1 / 8
_SIZE_TOKENS = 64  # context that is nothing beside the rest of a step

Logs = Mapping[Shape, Sequence[tuple[Pass, float]]]
"""Passes with their residuals, by stratum."""


def contrasts(passes: Iterable[tuple[Pass, float]], known: Logs, before_s: float) -> list[float]:
    """Residual of every pass less the median one of passes alike from before that time.

    Passes that have fewer than three alike say nothing and are left out.
    """
    found = []
    for one, value in passes:
        others = known.get(one.stratum, ())
        values = [each for other, each in others if other.at_s < before_s and alike(one, other)]
        if len(values) >= _FEWEST:
            found.append(value - median(values))
    return found


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
