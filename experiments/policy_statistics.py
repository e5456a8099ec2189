# SPDX-License-Identifier: Apache-2.0
"""Statistics of compare_policies.py: curves over loads, the rate sustained, paired differences.

Owns: pure functions of rows that were measured. Does not own: runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from analysis.intervals import half_width
from controller.types import FloatArray

TARGET = 0.9
LONGEST_DECILE = 0.8
LEAST = 0.2
"""No ratios where the smaller attainment is below (evaluation rule 7)."""
DYNAMO, AMPD, DEFLECTION, PLAIN = (
    "kv_cost+fifo",
    "ampd+algorithm_2",
    "deflect+fifo",
    "always_remote+fifo",
)


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
    """The rate sustained (evaluation rule 8). Arrays of shape (loads, seeds); rates ascend.

    The backlog grows from the first rate on at which it does so there and at all higher ones: one
    interval in forty lies above zero by chance.
    """
    rate = min(
        crossing(rates, attainment.mean(axis=1), TARGET),
        crossing(rates, longest.mean(axis=1), LONGEST_DECILE),
    )
    growing = None
    for at, fine in zip(rates[::-1], list(sustained)[::-1], strict=True):
        if fine:
            break
        growing = float(at)
    return rate if growing is None else min(rate, growing)


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


def paired_interval(differences: FloatArray) -> tuple[float, float]:
    """95 % interval of the mean of paired differences, shape (seeds,); one seed: no width."""
    mean, half = float(np.mean(differences)), half_width([float(d) for d in differences]) or 0.0
    return mean - half, mean + half


def ampd_claim(rows: pd.DataFrame) -> dict[str, Any]:
    """AMPD: SLO attainment 67 % above Dynamo's default on average, best in every cell (Fig. 4).

    Cells are (workload, load) with Dynamo at 20 % or more. By the mean ITL, as the paper has it.
    """
    mean = rows.groupby(["workload", "load", "rule"])["attainment"].mean().unstack("rule")
    fair = mean[mean[DYNAMO] >= LEAST]
    gain = fair[AMPD] / fair[DYNAMO] - 1.0
    return {
        "claimed_mean_gain": 0.67,
        "mean_gain": round(float(gain.mean()), 3),
        "most": round(float(gain.max()), 3),
        "least": round(float(gain.min()), 3),
        "cells": len(gain),
        "cells_ahead": int((gain > 0).sum()),
    }


def deflection_claim(rows: pd.DataFrame) -> dict[str, Any]:
    """Kairos: P95 TTFT down by up to 81 % against plain disaggregation, TBT within its SLO.

    The TBT is in its SLO where the p95 over requests of the p99 gap is.
    """
    values = rows.groupby(["workload", "load", "rule"])[["ttft_p95_ms", "gap_p95_ms"]].mean()
    both = values.unstack("rule")
    change = 1.0 - both["ttft_p95_ms"][DEFLECTION] / both["ttft_p95_ms"][PLAIN]
    limit_ms = rows.groupby(["workload", "load"])["slo_itl_ms"].first()
    kept = change[both["gap_p95_ms"][DEFLECTION] <= limit_ms]
    return {
        "claimed_most": 0.81,
        "most_with_tbt_kept": round(float(kept.max()), 3) if len(kept) else None,
        "mean_with_tbt_kept": round(float(kept.mean()), 3) if len(kept) else None,
        "cells": len(change),
        "cells_with_tbt_kept": len(kept),
    }
