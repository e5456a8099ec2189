# SPDX-License-Identifier: Apache-2.0
"""Intervals over seeds, as every quoted result carries them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def mean_interval(values: Sequence[float]) -> list[float | None]:
    """Mean and half-width of a 95 % interval over seeds (Student's t); None for one seed."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return [round(mean, 4), None]
    from scipy import stats

    error = statistics.stdev(values) / math.sqrt(len(values))
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return [round(mean, 4), round(quantile * error, 4)]
