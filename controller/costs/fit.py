# SPDX-License-Identifier: Apache-2.0
"""Step tables from measured steps: breakpoints found, outliers discounted, errors held out.

Owns: the fit of whole steps and the choice of how many breakpoints the data bear. Does not own:
the basis functions (fit_basis), operator tables (op_profiles), the live stream of a worker
(live_fit), files.

A step is dense(tokens) + decode(batch, context a sequence) + prefill(chunk, attended length), each
a sum of ramps with coefficients from 0 up: the result is monotone by construction. Least squares
of relative errors with Huber weights. Grids from one piece an axis up to eight are tried, finer
ones as long as the error on steps kept back clearly falls. Mixed steps are additive unless the
options allow an overlap (mixed_fit) and steps kept back are predicted clearly better with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from controller.costs.errors_report import FitErrors, ape, step_errors
from controller.costs.fit_basis import Grids, design, grids, tables_from
from controller.costs.measurements import StepMeasurements
from controller.costs.mixed_fit import with_overlap
from controller.costs.model import TableCost
from controller.costs.tables import Floats, StepTables
from controller.errors import UserError

_PIECES = (1, 2, 4, 8)
_LEAST = 10  # steps
_PER_COEFFICIENT = 4  # steps that a coefficient needs
_HUBER = 0.05
_ROUNDS = 4
_CLEAR_PCT = 0.05  # by which a finer grid must lower the error


class FitError(UserError):
    """Measurements from which no step tables can be fitted."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What the measurements cannot tell, and how the fit is judged."""

    max_chunk_tokens: int = 2048
    kv_latency_s: float = 0.0
    kv_bytes_per_token: float = 1.0
    kv_bandwidth_bytes_s: float = 1e9
    capture_sizes: tuple[int, ...] = ()
    pad_mixed: bool = False
    overlap: bool = False
    """Whether mixed steps may be other than the sum of their parts, if the measurements ask."""
    held_out_share: float = 0.2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StepFit:
    """Tables fitted on all measurements, and the errors of the same fit on held-out ones."""

    tables: StepTables
    errors: FitErrors


def fit_step_tables(m: StepMeasurements, options: FitOptions | None = None) -> StepFit:
    """Fit tables to measured steps; the errors come from a fit without the held-out share.

    Raises FitError when there are too few steps.
    """
    options = options or FitOptions()
    if len(m) < _LEAST:
        raise FitError(f"only {len(m)} measured steps; need at least {_LEAST}")
    rng = np.random.default_rng(options.seed)
    held = _share(len(m), options.held_out_share, rng)
    train, test = m.take(~held), m.take(held)
    law = _choose(train, options, rng)
    errors = step_errors(_predict(_fit(train, law, options), test), test, _said(m, options))
    return StepFit(_fit(m, law, options), errors)


def _said(m: StepMeasurements, options: FitOptions) -> str:
    return f"random {options.held_out_share:.0%} of {len(m)} steps, seed {options.seed}"


def _share(count: int, share: float, rng: np.random.Generator) -> np.ndarray:
    held = np.zeros(count, bool)
    held[rng.choice(count, max(1, int(share * count)), replace=False)] = True
    return held


class _Law(NamedTuple):
    """What is chosen by the error on steps kept back."""

    pieces: int
    overlap: bool


def _choose(m: StepMeasurements, options: FitOptions, rng: np.random.Generator) -> _Law:
    """Pieces an axis, and whether mixed steps overlap: the least error on steps kept back."""
    held = _share(len(m), 0.25, rng)
    train, test = m.take(~held), m.take(held)
    chosen, least = _Law(_PIECES[0], False), np.inf
    for law in _laws(train, options):
        found = ape(_predict(_fit(train, law, options), test), test.step_s)
        error = found.median_pct + found.p95_pct / 4
        # Not until the first grid that is no better: mixture-of-experts steps jump between small
        # batches, which 2 pieces an axis do not show and 8 do.
        if error + _CLEAR_PCT <= least:
            chosen, least = law, error
    return chosen


def _laws(m: StepMeasurements, options: FitOptions) -> Iterator[_Law]:
    """Simple ones first; as many pieces as the steps bear that they are fitted to."""
    for overlap, steps in ((False, m), *(((True, _pure(m)),) if options.overlap else ())):
        for pieces in _PIECES:
            grid = grids(m, pieces, options.capture_sizes, options.pad_mixed)
            enough = grid.coefficients * _PER_COEFFICIENT <= len(steps)
            if enough or (pieces == 1 and not overlap):
                yield _Law(pieces, overlap)


def _pure(m: StepMeasurements) -> StepMeasurements:
    return m.take((m.batch == 0) | (m.chunk == 0))


def _predict(tables: StepTables, m: StepMeasurements) -> Floats:
    return TableCost(tables).steps_s(m.batch, m.context, m.chunk, m.pairs)


def _fit(m: StepMeasurements, law: _Law, options: FitOptions) -> StepTables:
    grid = grids(m, law.pieces, options.capture_sizes, options.pad_mixed)
    if law.overlap:
        parts = tables_from(grid, _coefficients(_pure(m), grid), m, options)
        overlapping = with_overlap(parts, m)
        if overlapping is not None:
            return overlapping
    return tables_from(grid, _coefficients(m, grid), m, options)


def _coefficients(m: StepMeasurements, grid: Grids) -> Floats:
    """Coefficients from 0 up by reweighted relative least squares."""
    relative = design(m, grid) / m.step_s[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    relative = relative / scale
    weights = np.ones(len(m))
    found = np.zeros(relative.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        # The triangular factor has the same normal equations and few rows.
        weighted = np.column_stack([relative, np.ones(len(m))]) * root[:, None]
        factor: Floats = np.asarray(np.linalg.qr(weighted, mode="r"))
        found, _ = nnls(factor[:, :-1], factor[:, -1], maxiter=30 * relative.shape[1])
        residual = np.abs(relative @ found - 1.0)
        weights = np.minimum(1.0, _HUBER / np.maximum(residual, 1e-12))
    solution: Floats = found / scale
    return solution
