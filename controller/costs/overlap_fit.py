# SPDX-License-Identifier: Apache-2.0
"""The joint fit of prefill attention, decode attention in the mixed kernel, and their overlap.

Owns: one optimisation over three tables, given pure prefill and mixed measurements. Does not own:
the grids (attention_fit), what the tables mean (tables), making the result exactly monotone
(overlap_rules).

All nodes are found together because the parts of a mixed step are never seen alone: L-BFGS on
relative residuals with a Huber loss; prefill and decode nodes as logarithms. Penalties draw the
tables to what they must be: both parts close to linear in size and rising; a mixed step, seen on
the lattice of all nodes, not faster with more chunk or batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from controller.costs.grid_fit import Bends, bends_of, bilinear, fit_grid, monotone
from controller.costs.measurements import StepMeasurements
from controller.costs.tables import Floats

_HUBER = 0.05
_ITERATIONS = 300
_BEND = 0.3  # weight of the two parts' bends
_SMOOTH = 0.02  # weight of differences between neighbouring overlaps
_MONOTONE = 30.0  # weight of what falls and must not
_LATTICE = 1.0  # weight of lattice times that fall
_PURE_SHARE = 0.1  # pure prefills count like this share of the mixed steps, however few they are
_SMALL_PREFILL = 1.5  # mixed steps whose prefill part is this small show the decode part alone


@dataclass(frozen=True, slots=True)
class MixedAxes:
    """Grids of the three tables; `share` goes from 0 to 1."""

    chunk: Floats
    attended: Floats
    batch: Floats
    context: Floats
    share: Floats

    @property
    def lattice(self) -> tuple[int, int, int, int]:
        """Nodes along chunk, batch, attended, context."""
        return len(self.chunk), len(self.batch), len(self.attended), len(self.context)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Steps to evaluate, n of them: weights of the nodes, and the overlap cell. On grid rows."""

    prefill: csr_matrix  # (n, prefill nodes)
    decode: csr_matrix  # (n, decode nodes); a pure prefill has none
    cell: np.ndarray  # (n,) flat index of (chunk, batch)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Everything that stays while the optimiser moves the nodes."""

    data: _Rows
    log_s: Floats
    weight: Floats
    lattice: _Rows
    axes: MixedAxes
    prefill_bends: Bends
    decode_bends: Bends

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int, int]]:
        chunk, batch, attended, context = self.axes.lattice
        return (chunk, attended), (batch, context), (chunk, batch, len(self.axes.share))


def fit_mixed(
    prefill: StepMeasurements, mixed: StepMeasurements, axes: MixedAxes
) -> tuple[Floats, Floats, Floats]:
    """(prefill_s, mixed_decode_s, overlap) as tables over the axes; the first two monotone."""
    start_prefill = fit_grid(
        prefill.chunk, prefill.pairs / prefill.chunk, prefill.step_s, axes.chunk, axes.attended
    )
    start_decode = _start_decode(mixed, start_prefill, axes)
    problem = _problem(prefill, mixed, axes)
    overlaps = np.ones(problem.shapes[2])
    start = np.concatenate(
        [np.log(start_prefill.ravel()), np.log(start_decode.ravel()), overlaps.ravel()]
    )
    found = minimize(
        _loss,
        start,
        args=(problem,),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _ITERATIONS, "maxcor": 20},
    ).x
    p, d, overlap = _split(found, problem)
    return monotone(np.exp(p)), monotone(np.exp(d)), overlap


def _share_place(grid: Floats, share: Floats) -> tuple[np.ndarray, Floats]:
    k = np.clip(np.searchsorted(grid, share, side="right") - 1, 0, len(grid) - 2)
    return k, (share - grid[k]) / (grid[k + 1] - grid[k])


def _start_decode(mixed: StepMeasurements, prefill_s: Floats, axes: MixedAxes) -> Floats:
    """The decode part from mixed steps whose prefill is close to the smallest there is."""
    size = mixed.pairs / mixed.chunk
    alone = bilinear(mixed.chunk, size, axes.chunk, axes.attended) @ prefill_s.ravel()
    m = mixed.take(alone <= _SMALL_PREFILL * alone.min())
    return fit_grid(m.batch, m.context / m.batch, m.step_s, axes.batch, axes.context)


def _problem(prefill: StepMeasurements, mixed: StepMeasurements, axes: MixedAxes) -> _Problem:
    boost = max(1.0, _PURE_SHARE * len(mixed) / max(1, len(prefill)))
    x, b = np.concatenate([mixed.chunk, prefill.chunk]), axes.batch[0]
    batch = np.concatenate([mixed.batch, np.full(len(prefill), b)])
    context = np.concatenate([mixed.context, np.zeros(len(prefill))]) / batch
    is_mixed = (np.arange(len(x)) < len(mixed)).astype(np.float64)
    attended = np.concatenate([mixed.pairs, prefill.pairs]) / x
    data = _rows(axes, x, batch, attended, context)
    mesh = np.meshgrid(axes.chunk, axes.batch, axes.attended, axes.context, indexing="ij")
    return _Problem(
        data=_Rows(data.prefill, data.decode.multiply(is_mixed[:, None]).tocsr(), data.cell),
        log_s=np.log(np.concatenate([mixed.step_s, prefill.step_s])),
        weight=np.where(is_mixed > 0, 1.0, boost),
        lattice=_rows(axes, *(side.ravel() for side in mesh)),
        axes=axes,
        prefill_bends=bends_of(axes.chunk, axes.attended),
        decode_bends=bends_of(axes.batch, axes.context),
    )


def _rows(
    axes: MixedAxes, chunk: Floats, batch: Floats, attended: Floats, context: Floats
) -> _Rows:
    return _Rows(
        prefill=bilinear(chunk, attended, axes.chunk, axes.attended),
        decode=bilinear(batch, context, axes.batch, axes.context),
        cell=_nearest(axes.chunk, chunk) * len(axes.batch) + _nearest(axes.batch, batch),
    )


def _nearest(grid: Floats, at: Floats) -> np.ndarray:
    """Index of the grid point closest in ratio: measured chunks and batches lie on the grid."""
    nearest: np.ndarray = np.abs(np.log(at)[:, None] - np.log(grid)[None, :]).argmin(axis=1)
    return nearest


def _split(theta: Floats, q: _Problem) -> tuple[Floats, Floats, Floats]:
    first, second, third = q.shapes
    a, b = np.prod(first), np.prod(first) + np.prod(second)
    return theta[:a].reshape(first), theta[a:b].reshape(second), theta[b:].reshape(third)


def _loss(theta: Floats, q: _Problem) -> tuple[float, Floats]:
    """Huber loss of relative residuals plus penalties, and its gradient."""
    p, d, table = _split(theta, q)
    nodes = np.exp(p.ravel()), np.exp(d.ravel())
    gradient = np.zeros_like(theta)

    value, back = _evaluate(q.data, nodes, table, q.axes.share)
    residual = np.log(value) - q.log_s
    size = np.abs(residual)
    huber = np.where(size < _HUBER, residual**2 / 2, _HUBER * size - _HUBER**2 / 2)
    loss = float((q.weight * huber).sum())
    gradient += back(q.weight * np.clip(residual, -_HUBER, _HUBER) / value)

    value, back = _evaluate(q.lattice, nodes, table, q.axes.share)
    falls, by_log = _neighbours(np.log(value).reshape(q.axes.lattice), 0.0, _LATTICE, (0, 1))
    gradient += back(by_log.ravel() / value)
    loss += falls

    g_p, g_d, g_table = _split(gradient, q)
    for part, g, bends in ((p, g_p, q.prefill_bends), (d, g_d, q.decode_bends)):
        bent, by_bent = bends.relative(np.exp(part.ravel()))
        falls, by_falls = _neighbours(part, 0.0, _MONOTONE, (0, 1))
        g[...] += _BEND * (by_bent.T @ bent).reshape(part.shape) + by_falls
        loss += _BEND * float(bent @ bent) / 2 + falls
    smooth, by_smooth = _neighbours(table, _SMOOTH, 0.0, (0, 1, 2))
    g_table += by_smooth
    g_table[:, :, [0, -1]] = 0.0  # one part alone takes its own time: the ends stay 1
    return loss + smooth, gradient


def _evaluate(
    rows: _Rows, nodes: tuple[Floats, Floats], table: Floats, share_grid: Floats
) -> tuple[Floats, Callable[[Floats], Floats]]:
    """Times (n,) and the function that turns d loss/d time (n,) into a gradient."""
    p, d = rows.prefill @ nodes[0], rows.decode @ nodes[1]
    total = p + d
    share = d / total
    k, w = _share_place(share_grid, share)
    lower = rows.cell * len(share_grid) + k
    flat = table.ravel()
    ratio = flat[lower] * (1 - w) + flat[lower + 1] * w
    slope = (flat[lower + 1] - flat[lower]) / (share_grid[k + 1] - share_grid[k])

    def back(pull: Floats) -> Floats:
        by_p = rows.prefill.T @ (pull * (ratio - share * slope))
        by_d = rows.decode.T @ (pull * (ratio + (1 - share) * slope))
        by_node = np.bincount(lower, pull * total * (1 - w), flat.size)
        by_node += np.bincount(lower + 1, pull * total * w, flat.size)
        return np.concatenate([by_p * nodes[0], by_d * nodes[1], by_node])

    return np.maximum(total * ratio, 1e-9), back


def _neighbours(
    table: Floats, smooth: float, rise: float, axes: tuple[int, ...]
) -> tuple[float, Floats]:
    """Penalty on neighbours that differ (weight smooth) or fall along an axis (weight rise)."""
    loss, gradient = 0.0, np.zeros_like(table)
    for axis in axes:
        step = np.diff(table, axis=axis)
        fall = np.minimum(step, 0.0)
        force = smooth * step + rise * fall
        loss += (smooth * float((step**2).sum()) + rise * float((fall**2).sum())) / 2
        upper, under = [slice(None)] * table.ndim, [slice(None)] * table.ndim
        upper[axis], under[axis] = slice(1, None), slice(None, -1)
        gradient[tuple(upper)] += force
        gradient[tuple(under)] -= force
    return loss, gradient
