# SPDX-License-Identifier: Apache-2.0
"""How prompt tokens and decodes of one step overlap, from whole steps.

Owns: the overlap table of step tables whose parts are fitted already. Does not own: the parts
(fit), what the table means (tables), what makes it monotone (overlap_rules).

Whole steps show the parts only through their sum, so the parts come from steps that hold one of
them alone, and a mixed step is dense + (P + D) * overlap(chunk, batch, share): linear in the nodes
of the table. Least squares of relative errors with Huber weights; every node is drawn weakly to 1
and to its neighbours, which fills cells that no step reaches.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix, diags, identity, vstack
from scipy.sparse.linalg import spsolve

from controller.costs.checks import problem
from controller.costs.grid_fit import bilinear
from controller.costs.measurements import StepMeasurements
from controller.costs.model import TableCost
from controller.costs.overlap_rules import enforce
from controller.costs.tables import Floats, StepTables, vector

_SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_CELLS = 4  # chunks and batches of the table, at most
_PER_CELL = 15  # mixed steps a cell needs
_HUBER = 0.05
_ROUNDS = 4
_TO_ONE, _TO_NEIGHBOUR = 0.01, 0.1  # weights against one relative error
_KEEPS = np.linspace(1.0, 0.1, 10)  # shares of the distance from 1 that are tried


def with_overlap(tables: StepTables, m: StepMeasurements) -> StepTables | None:
    """`tables`, fitted without mixed steps, with the overlap that the mixed steps of `m` show.

    None when those are too few to tell, or show none that keeps mixed steps monotone.
    """
    mixed = m.take((m.batch > 0) & (m.chunk > 0))
    cells = min(_CELLS, int(np.sqrt(len(mixed) / _PER_CELL)))
    if cells < 2:
        return None
    chunk, batch = _spread(mixed.chunk, cells), _spread(mixed.batch, cells)
    parts = _refined(tables, chunk, batch)
    share = vector(_SHARES)
    found = _overlap(parts, mixed, share)
    rows = np.searchsorted(parts.chunk, chunk)
    prefill_s = parts.prefill_s.reshape(len(parts.chunk), -1)[rows]
    decode_s = parts.mixed_decode_s.reshape(len(batch), -1)
    kept = enforce(found, prefill_s, decode_s, share).ravel()
    for keep in _KEEPS:
        # The rules are linear in the overlap and hold at 1: nearer to it they hold again where
        # `enforce` has left something, and files round.
        overlap = np.round(1.0 + keep * (kept - 1.0), 4)
        made = parts._replace(mixed_share=share, overlap=overlap)
        if problem(made) is None:
            return made
    return None


def _spread(values: Floats, count: int) -> Floats:
    """At most `count` points over the measured range, equal steps of the logarithm."""
    return vector(np.unique(np.round(np.geomspace(values.min(), values.max(), count), 6)))


def _refined(t: StepTables, chunk: Floats, batch: Floats) -> StepTables:
    """The same tables with rows at these chunks, and the decode part on rows of these batches."""
    alone = t._replace(dense_s=0.0 * t.dense_s, sequence_s=0.0 * t.sequence_s)
    cost, chunks = TableCost(alone), np.union1d(t.chunk, chunk)
    x, z = np.meshgrid(chunks, t.attended, indexing="ij")
    b, k = np.meshgrid(batch, t.context, indexing="ij")
    return t._replace(
        chunk=chunks,
        prefill_s=cost.steps_s(0.0, 0.0, x, x * z).ravel(),
        mixed_batch=batch,
        mixed_context=t.context,
        mixed_decode_s=cost.steps_s(b, b * k, 0.0, 0.0).ravel(),
        mixed_chunk=chunk,
    )


def _overlap(t: StepTables, m: StepMeasurements, share: Floats) -> Floats:
    """(chunk, batch, share), ends 1."""
    shape = (len(t.mixed_chunk), len(t.mixed_batch), len(share))
    design, shared_s = _design(t, m, share)
    relative = diags(1.0 / m.step_s) @ design
    # Solved for the distance from 1.
    target = 1.0 - (shared_s + np.asarray(design.sum(axis=1)).ravel()) / m.step_s
    held = vstack([_TO_NEIGHBOUR * _differences(shape), _TO_ONE * identity(np.prod(shape))])
    inner = np.ones(shape)
    inner[:, :, [0, -1]] = 0.0
    free = diags(inner.ravel())
    found = np.zeros(int(np.prod(shape)))
    weights = np.ones(len(m))
    for _ in range(_ROUNDS):
        normal = free @ (relative.T @ diags(weights) @ relative) @ free + held.T @ held
        found = free @ spsolve(normal.tocsc(), free @ (relative.T @ (weights * target)))
        residual = np.abs(relative @ found - target)
        weights = np.minimum(1.0, _HUBER / np.maximum(residual, 1e-12))
    table: Floats = 1.0 + found.reshape(shape)
    return table


def _design(t: StepTables, m: StepMeasurements, share: Floats) -> tuple[csr_matrix, Floats]:
    """(steps, nodes): seconds that a step takes for every unit of a node; and its other seconds."""
    cost = TableCost(t)
    alone = TableCost(t._replace(dense_s=0.0 * t.dense_s, sequence_s=0.0 * t.sequence_s))
    one = np.ones(len(m))
    cells = bilinear(m.chunk, m.batch, t.mixed_chunk, t.mixed_batch).tocoo()
    step, cell = cells.row, cells.col
    row, column = cell // len(t.mixed_batch), cell % len(t.mixed_batch)
    x, b = t.mixed_chunk[row], t.mixed_batch[column]
    prefill = alone.steps_s(0.0, 0.0, x, x * (m.pairs / m.chunk)[step])
    decode = alone.steps_s(b, b * (m.context / m.batch)[step], 0.0, 0.0)
    both = prefill + decode
    at = np.divide(decode, both, out=np.zeros(len(both)), where=both > 0)
    nodes = diags(cells.data * both) @ bilinear(at, one[step], share, vector([1.0]))
    pick = csr_matrix((np.ones(len(step)), (step, np.arange(len(step)))), (len(m), len(step)))
    size = len(t.mixed_chunk) * len(t.mixed_batch) * len(share)
    spread = nodes.tocoo()
    placed = csr_matrix(
        (spread.data, (spread.row, cell[spread.row] * len(share) + spread.col)), (len(step), size)
    )
    additive_s = cost.steps_s(m.batch, m.context, m.chunk, m.pairs)
    parts_s = alone.steps_s(m.batch, m.context, m.chunk, m.pairs)
    return (pick @ placed).tocsr(), additive_s - parts_s


def _differences(shape: tuple[int, int, int]) -> csr_matrix:
    """(pairs, nodes): differences between neighbours along chunk and batch, and along share."""
    index = np.arange(np.prod(shape)).reshape(shape)
    lower = np.concatenate([index.take(range(n - 1), a).ravel() for a, n in enumerate(shape)])
    upper = np.concatenate([index.take(range(1, n), a).ravel() for a, n in enumerate(shape)])
    data = np.repeat([1.0, -1.0], len(lower))
    at = np.tile(np.arange(len(lower)), 2)
    return csr_matrix((data, (at, np.concatenate([upper, lower]))), (len(lower), index.size))
