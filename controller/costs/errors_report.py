# SPDX-License-Identifier: Apache-2.0
"""How wrong predictions are: absolute percentage errors, overall and by kind of step.

Owns: the statistics and the closed set of kinds. Does not own: what is predicted.
Percentiles interpolate linearly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from controller.costs.measurements import StepMeasurements
from controller.costs.tables import Floats


class StepKind(str, Enum):
    """What a step computes; the ranges by which errors are reported."""

    PREFILL = "prefill"
    PREFILL_WITH_HISTORY = "prefill_with_history"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Ape:
    """Absolute percentage errors of `count` predictions, in per cent."""

    median_pct: float
    p95_pct: float
    count: int


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Errors on steps that the fit has not seen; `held_out` says how they were chosen."""

    overall: Ape
    held_out: str
    by_kind: Mapping[StepKind, Ape] = field(default_factory=dict)


def ape(predicted: Floats, measured: Floats) -> Ape:
    """Errors of predictions against measurements, both of shape (n,). n = 0 gives NaN errors."""
    if len(measured) == 0:
        return Ape(float("nan"), float("nan"), 0)
    errors = 100.0 * np.abs(predicted - measured) / measured
    median, p95 = np.percentile(errors, [50, 95])
    return Ape(float(median), float(p95), len(errors))


def kinds(m: StepMeasurements) -> dict[StepKind, np.ndarray]:
    """A mask of shape (n,) for each kind of step."""
    prefill = (m.batch == 0) & (m.chunk > 0)
    alone = m.pairs <= m.chunk**2 / 2 * (1 + 1e-9)  # several short prompts count as no history
    return {
        StepKind.PREFILL: prefill & alone,
        StepKind.PREFILL_WITH_HISTORY: prefill & ~alone,
        StepKind.DECODE: (m.batch > 0) & (m.chunk == 0),
        StepKind.MIXED: (m.batch > 0) & (m.chunk > 0),
    }


def step_errors(predicted_s: Floats, m: StepMeasurements, held_out: str) -> FitErrors:
    """Errors of predicted step times, overall and for the kinds that occur."""
    by_kind = {
        kind: ape(predicted_s[mask], m.step_s[mask])
        for kind, mask in kinds(m).items()
        if mask.any()
    }
    return FitErrors(ape(predicted_s, m.step_s), held_out, by_kind)
