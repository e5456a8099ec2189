# SPDX-License-Identifier: Apache-2.0
"""The basis of monotone step tables: ramps along each axis, and products of ramps.

Owns: where breakpoints may lie, the design matrix of measured steps, and turning coefficients into
`StepTables`. Does not own: estimating coefficients (fit).

A ramp goes from 0 at one grid point to 1 at the next and stays there (the last goes on). A table
over batch and context is sum of coefficient * ramp(batch) * (1 or ramp(context)): with
coefficients from 0 up it rises along both axes, and is linear between grid points in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from controller.costs.measurements import StepMeasurements
from controller.costs.tables import (
    LIMITS,
    MAX_ATTENDED,
    MAX_BATCH,
    MAX_CONTEXT,
    MAX_STEP_CHUNK,
    PAD_MIXED,
    Floats,
    StepTables,
    additive,
    default_options,
    transfer_vector,
    vector,
)

if TYPE_CHECKING:
    from controller.costs.fit import FitOptions


@dataclass(frozen=True, slots=True)
class Grids:
    """Breakpoints of each axis, all from 0."""

    tokens: Floats
    batch: Floats
    context: Floats
    chunk: Floats
    attended: Floats
    capture_sizes: Floats
    pad_mixed: bool

    @property
    def coefficients(self) -> int:
        """Columns of the design matrix."""
        decode = (len(self.batch) - 1) * len(self.context)
        return len(self.tokens) + decode + (len(self.chunk) - 1) * len(self.attended)


def grids(m: StepMeasurements, pieces: int, sizes: tuple[int, ...], pad_mixed: bool) -> Grids:
    """Grids of at most `pieces` pieces an axis over what was measured."""
    b, x = m.batch[m.batch > 0], m.chunk[m.chunk > 0]
    context = m.context[m.batch > 0] / b
    attended = m.pairs[m.chunk > 0] / x
    return Grids(
        tokens=_grid(m.batch + m.chunk, pieces),
        batch=_grid(b, pieces),
        context=_grid(context, max(1, pieces // 2)),
        chunk=_grid(x, pieces),
        attended=_grid(attended, max(1, pieces // 2)),
        capture_sizes=vector(sizes),
        pad_mixed=pad_mixed,
    )


def _grid(values: Floats, pieces: int) -> Floats:
    """0, then measured values at equal steps of the logarithm, the largest last."""
    if len(values) == 0 or values.max() <= 0:
        return vector([0.0, 1.0])
    top, low = values.max(), max(float(np.quantile(values, 0.05)), 1.0)
    wanted = np.geomspace(max(low, top / 2.0**pieces), top, pieces) if pieces > 1 else [top]
    return vector([0.0, *np.unique(np.round(wanted, 6))])


def ramps(grid: Floats, at: Floats) -> Floats:
    """(n, len(grid) - 1): every ramp at points (n,)."""
    rise: Floats = (at[:, None] - grid[None, :-1]) / np.diff(grid)[None, :]
    rise[:, :-1] = np.minimum(rise[:, :-1], 1.0)
    return np.maximum(rise, 0.0)


def design(m: StepMeasurements, grid: Grids) -> Floats:
    """(n, coefficients) in the order dense, decode, prefill."""
    ones = np.ones((len(m), 1))
    dense = np.hstack([ones, ramps(grid.tokens, _tokens(m, grid))])
    decode = _products(m.batch, m.context, grid.batch, grid.context)
    prefill = _products(m.chunk, m.pairs, grid.chunk, grid.attended)
    return np.hstack([dense, decode, prefill])


def _products(count: Floats, total: Floats, counts: Floats, sizes: Floats) -> Floats:
    size = np.divide(total, count, out=np.zeros(len(count)), where=count > 0)
    by_count = ramps(counts, count)
    by_size = np.hstack([np.ones((len(count), 1)), ramps(sizes, size)])
    return (by_count[:, :, None] * by_size[:, None, :]).reshape(len(count), -1)


def _tokens(m: StepMeasurements, grid: Grids) -> Floats:
    """Tokens of each step with CUDA graph padding as the kernels apply it."""
    tokens = m.batch + m.chunk
    if len(grid.capture_sizes) == 0:
        return tokens
    place = np.searchsorted(grid.capture_sizes, tokens)
    fits = place < len(grid.capture_sizes)
    padded = grid.capture_sizes[np.minimum(place, len(grid.capture_sizes) - 1)]
    pads = fits & ((m.chunk == 0) | grid.pad_mixed)
    return np.where(pads, padded, tokens)


def tables_from(
    grid: Grids, coefficients: Floats, m: StepMeasurements, options: FitOptions
) -> StepTables:
    """The tables of a solution; limits are the ranges of `m`."""
    decodes = (len(grid.batch) - 1) * len(grid.context)
    first, second = len(grid.tokens), len(grid.tokens) + decodes
    found = default_options(options.max_chunk_tokens)
    found[PAD_MIXED] = float(options.pad_mixed)
    return StepTables(
        dense_tokens=grid.tokens,
        dense_s=np.cumsum(coefficients[:first]),
        sequences=vector([]),
        sequence_s=vector([]),
        batch=grid.batch,
        context=grid.context,
        decode_s=_nodes(coefficients[first:second], grid.batch, grid.context),
        chunk=grid.chunk,
        attended=grid.attended,
        prefill_s=_nodes(coefficients[second:], grid.chunk, grid.attended),
        capture_sizes=grid.capture_sizes,
        transfer=transfer_vector(
            options.kv_latency_s, options.kv_bytes_per_token, options.kv_bandwidth_bytes_s
        ),
        limits=_limits(m),
        options=found,
        **additive(),
    )


def _nodes(coefficients: Floats, counts: Floats, sizes: Floats) -> Floats:
    table = coefficients.reshape(len(counts) - 1, len(sizes)).cumsum(axis=0).cumsum(axis=1)
    return np.vstack([np.zeros(len(sizes)), table]).ravel()


def _limits(m: StepMeasurements) -> Floats:
    b, x = np.maximum(m.batch, 1.0), np.maximum(m.chunk, 1.0)
    limits = np.zeros(LIMITS)
    limits[MAX_BATCH], limits[MAX_CONTEXT] = m.batch.max(), (m.context / b).max()
    limits[MAX_STEP_CHUNK], limits[MAX_ATTENDED] = m.chunk.max(), (m.pairs / x).max()
    return limits
