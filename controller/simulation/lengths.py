# SPDX-License-Identifier: Apache-2.0
"""The law of token counts that the synthetic workloads draw from."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from controller.simulation.traces import TraceError
from controller.types import IntArray


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal token counts, clipped; `mean` is that of the law before clipping.

    `sigma` is the standard deviation of the logarithm; 0 gives a constant.
    """

    mean: float
    sigma: float
    low: int
    high: int

    def __post_init__(self) -> None:
        good = math.isfinite(self.mean) and self.mean > 0 and math.isfinite(self.sigma)
        if not (good and self.sigma >= 0 and 1 <= self.low <= self.high):
            raise TraceError(
                f"lengths {self.mean:g}, {self.sigma:g}, {self.low}, {self.high}: give a mean "
                "above 0, a sigma of at least 0 and bounds 1 <= low <= high"
            )

    def draw(self, rng: random.Random) -> int:
        """One length."""
        tokens = rng.lognormvariate(self._location, self.sigma)
        return min(self.high, max(self.low, round(tokens)))

    def draw_many(self, rng: np.random.Generator, count: int) -> IntArray:
        """(count,) lengths."""
        tokens = rng.lognormal(self._location, self.sigma, count)
        return np.clip(np.rint(tokens), self.low, self.high).astype(np.int64)

    @property
    def _location(self) -> float:
        return math.log(self.mean) - self.sigma**2 / 2


def constant(tokens: int) -> Lengths:
    """Always the same length."""
    return Lengths(tokens, 0.0, tokens, tokens)
