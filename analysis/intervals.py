# SPDX-License-Identifier: Apache-2.0
"""Intervals over seeds, as every quoted result carries them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def half_width(values: Sequence[float]) -> float | None:
    """Of a 95 % interval of the mean (Student's t); None for one value."""
    if len(values) < 2:
        return None
    from scipy import stats

    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(stats.t.ppf(0.975, len(values) - 1)) * error


def mean_interval(values: Sequence[float]) -> list[float | None]:
    """Mean and half-width of a 95 % interval over seeds (Student's t); None for one seed."""
    half = half_width(values)
    return [round(statistics.mean(values), 4), None if half is None else round(half, 4)]
