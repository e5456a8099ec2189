# SPDX-License-Identifier: Apache-2.0
"""Attention tables (pure decode, pure prefill, mixed) from measured attention times.

Owns: the grids, the order of fitting and dropping grid rows that their neighbours explain. Does
not own: the fit of one grid (grid_fit), the joint fit of mixed steps (overlap_fit), evaluation
(kernels).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from controller.costs.grid_fit import fit_grid
from controller.costs.measurements import StepMeasurements
from controller.costs.overlap_fit import MixedAxes, fit_mixed
from controller.costs.overlap_rules import enforce, lattice_times
from controller.costs.tables import Floats, additive, vector

_WORST = 0.9
_STEP = 1.9  # neighbours in a size grid are at least this factor apart
_SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.88, 1.0)
_MIXED_TOLERANCE = 0.03
_ROW_TOLERANCE = 0.02  # a row stays if interpolation between its neighbours errs by more


class AttentionTables(NamedTuple):
    """The attention fields of `StepTables`, by the same names."""

    batch: Floats
    context: Floats
    decode_s: Floats
    chunk: Floats
    attended: Floats
    prefill_s: Floats
    mixed_batch: Floats
    mixed_context: Floats
    mixed_decode_s: Floats
    mixed_chunk: Floats
    mixed_share: Floats
    overlap: Floats


def fit_attention(m: StepMeasurements) -> AttentionTables:
    """Fit measured attention times that hold pure decodes and pure prefills; mixed if any."""
    decode = m.take((m.chunk == 0) & (m.batch > 0))
    prefill = m.take((m.batch == 0) & (m.chunk > 0))
    mixed = m.take((m.batch > 0) & (m.chunk > 0))
    batch, context = np.unique(decode.batch), size_grid(decode.context / decode.batch)
    decode_s = fit_grid(decode.batch, decode.context / decode.batch, decode.step_s, batch, context)
    chunk = np.unique(prefill.chunk)
    attended = attended_grid(chunk, prefill.pairs / prefill.chunk)
    if len(mixed) == 0:
        size = prefill.pairs / prefill.chunk
        prefill_s = fit_grid(prefill.chunk, size, prefill.step_s, chunk, attended)
        kept, rest = needed_rows(chunk, prefill_s, _ROW_TOLERANCE), additive()
    else:
        axes = MixedAxes(
            chunk=chunk,
            attended=attended,
            batch=np.unique(mixed.batch),
            context=size_grid(mixed.context / mixed.batch),
            share=vector(_SHARES),
        )
        prefill_s, mixed_decode_s, overlap = fit_mixed(prefill, mixed, axes)
        prefill_s = fill_short(chunk, attended, prefill_s)
        overlap = enforce(overlap, prefill_s, mixed_decode_s, axes.share)
        times = lattice_times(overlap, prefill_s, mixed_decode_s, axes.share)
        kept_mixed = needed_rows(chunk, times, _MIXED_TOLERANCE)
        kept = np.union1d(needed_rows(chunk, prefill_s, _ROW_TOLERANCE), kept_mixed)
        rest = {
            "mixed_batch": axes.batch,
            "mixed_context": axes.context,
            "mixed_decode_s": mixed_decode_s.ravel(),
            "mixed_chunk": chunk[kept_mixed],
            "mixed_share": axes.share,
            "overlap": overlap[kept_mixed].ravel(),
        }
    return AttentionTables(
        batch=batch,
        context=context,
        decode_s=decode_s.ravel(),
        chunk=chunk[kept],
        attended=attended,
        prefill_s=prefill_s[kept].ravel(),
        **rest,
    )


def size_grid(sizes: Floats) -> Floats:
    """Nodes among the measured sizes, thinned to the least spacing, both ends kept."""
    found = np.unique(sizes)
    nodes = [found[-1]]
    for size in found[-2::-1]:
        if nodes[-1] >= _STEP * size:
            nodes.append(size)
    if nodes[-1] != found[0]:
        nodes.append(found[0])
    return vector(nodes[::-1])


def attended_grid(chunk: Floats, sizes: Floats) -> Floats:
    """Nodes from half of the smallest chunk (its attended length without history), doubling."""
    nodes, top = [chunk[0] / 2], sizes.max()
    while nodes[-1] * _STEP < top:
        nodes.append(nodes[-1] * 2)
    nodes[-1] = top
    return vector(nodes)


def fill_short(chunk: Floats, attended: Floats, table: Floats) -> Floats:
    """Times where the attended length is below chunk/2: several prompts in one chunk.

    One prompt never shows them. A row keeps the ratio to the row before that it has at the first
    length it can show, since a chunk of equal prompts has as many more blocks to compute.
    """
    filled: Floats = table.copy()
    for i in range(1, len(chunk)):
        first = int(np.searchsorted(attended, chunk[i] / 2))
        ratio = filled[i, first] / filled[i - 1, first]
        filled[i, :first] = filled[i - 1, :first] * ratio
    return filled


def needed_rows(grid: Floats, table: Floats, tolerance: float) -> np.ndarray:
    """Indices of the rows (first axis) without which interpolation errs by more than tolerance.

    Douglas-Peucker over whole rows: the error of a row is its largest relative one.
    """
    flat = table.reshape(len(grid), -1)
    keep, spans = {0, len(grid) - 1}, [(0, len(grid) - 1)]
    while spans:
        first, last = spans.pop()
        if last - first < 2:
            continue
        inner = np.arange(first + 1, last)
        weight = ((grid[inner] - grid[first]) / (grid[last] - grid[first]))[:, None]
        drawn = (1 - weight) * flat[first] + weight * flat[last]
        off = np.abs(drawn / np.maximum(flat[inner], 1e-300) - 1.0)
        error = np.quantile(off, _WORST, axis=1)
        if error.max() > tolerance:
            middle = int(inner[np.argmax(error)])
            keep.add(middle)
            spans += [(first, middle), (middle, last)]
    return np.array(sorted(keep))
