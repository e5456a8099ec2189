# SPDX-License-Identifier: Apache-2.0
"""Means over the last seconds (AMPD section 1: windowed TTFT and ITL, 10 s by default)."""

from __future__ import annotations

import math
from collections import deque


class MeanWindow:
    """Weighted mean of the samples of the last `length_s` seconds.

    Samples come in time order; an older time stamp counts as the newest one seen, so that a
    clock that steps back cannot empty the window.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._samples: deque[tuple[float, float, float]] = deque()
        self._weighted = 0.0
        self._weight = 0.0
        self._newest_s = -math.inf

    def add(self, at_s: float, value: float, weight: float = 1.0) -> None:
        """Add a finite sample; NaN, infinite or weightless ones are ignored."""
        if not (math.isfinite(value) and math.isfinite(weight) and weight > 0):
            return
        self._newest_s = max(self._newest_s, at_s)
        self._samples.append((self._newest_s, value, weight))
        self._weighted += value * weight
        self._weight += weight
        self._drop(self._newest_s)

    def mean(self, now_s: float) -> float:
        """Mean over (now - length, now]; NaN when empty."""
        self._drop(max(now_s, self._newest_s))
        if not self._samples:
            return math.nan
        return self._weighted / self._weight

    def until_s(self) -> float:
        """The instant from which `mean` may differ without a new sample; infinite when empty."""
        return self._samples[0][0] + self._length_s if self._samples else math.inf

    def __len__(self) -> int:
        return len(self._samples)

    def _drop(self, now_s: float) -> None:
        while self._samples and self._samples[0][0] <= now_s - self._length_s:
            _, value, weight = self._samples.popleft()
            self._weighted -= value * weight
            self._weight -= weight
        if not self._samples:
            # Sums of floats drift; an empty window is the place to forget it.
            self._weighted = self._weight = 0.0
