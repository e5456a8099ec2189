# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured by range: where a profile is good and where it is not.

Owns: the ranges. Does not own: the statistics (errors_report), tables and plots (cli, analysis).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.costs.errors_report import Ape, StepKind, ape, kinds
from controller.costs.measurements import StepMeasurements
from controller.costs.model import TableCost
from controller.costs.tables import Floats

_BATCHES = (1, 2, 9, 33, 129)
_CHUNKS = (1, 129, 513, 2049, 8193)
_CONTEXTS = (0, 1025, 4097, 16385)


@dataclass(frozen=True, slots=True)
class RangeError:
    """Errors of the steps of one kind in one range of one quantity."""

    kind: StepKind
    quantity: str
    low: int
    high: int | None
    """Inclusive; None is open."""
    errors: Ape
    bias_pct: float
    """Median of the signed error: above 0 the prediction is too long."""


def error_ranges(predicted_s: Floats, m: StepMeasurements) -> list[RangeError]:
    """Every range that holds steps. Decode by batch and by context of a sequence, prefill by
    chunk and by attended length of a token (pairs/chunk), mixed by chunk and by batch."""
    with np.errstate(divide="ignore", invalid="ignore"):
        context, attended = m.context / m.batch, m.pairs / m.chunk
    masks = kinds(m)
    return [
        found
        for kind, quantity, values, edges in (
            (StepKind.PREFILL, "prompt tokens", m.chunk, _CHUNKS),
            (StepKind.PREFILL_WITH_HISTORY, "prompt tokens", m.chunk, _CHUNKS),
            (StepKind.PREFILL_WITH_HISTORY, "attended tokens", attended, _CONTEXTS),
            (StepKind.DECODE, "batch", m.batch, _BATCHES),
            (StepKind.DECODE, "context tokens each", context, _CONTEXTS),
            (StepKind.MIXED, "prompt tokens", m.chunk, _CHUNKS),
            (StepKind.MIXED, "batch", m.batch, _BATCHES),
        )
        for found in _ranges(kind, quantity, values, edges, masks[kind], predicted_s, m)
    ]


def extrapolated(cost: TableCost, m: StepMeasurements) -> NDArray[np.bool_]:
    """Which steps lie outside what the profile was made from, shape (n,)."""
    rows = zip(m.batch, m.context, m.chunk, m.pairs, strict=True)
    return np.array([cost.extrapolates(b, c, x, p) for b, c, x, p in rows], dtype=np.bool_)


def _ranges(
    kind: StepKind,
    quantity: str,
    values: Floats,
    edges: tuple[int, ...],
    mask: NDArray[np.bool_],
    predicted_s: Floats,
    m: StepMeasurements,
) -> Iterator[RangeError]:
    for low, above in zip(edges, (*edges[1:], np.inf), strict=True):
        inside = mask & (values >= low) & (values < above)
        if not inside.any():
            continue
        predicted, measured = predicted_s[inside], m.step_s[inside]
        yield RangeError(
            kind=kind,
            quantity=quantity,
            low=low,
            high=None if above == np.inf else int(above) - 1,
            errors=ape(predicted, measured),
            bias_pct=float(100 * np.median(predicted / measured - 1)),
        )
