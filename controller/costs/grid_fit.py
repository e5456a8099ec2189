# SPDX-License-Identifier: Apache-2.0
"""A monotone table on a grid of two variables through scattered, noisy, positive measurements.

Owns: the fit of the values at the grid's nodes, given that the table is bilinear between them (as
the kernels read it). Does not own: what the variables are, where the grid comes from.

Gauss-Newton on the logarithms of the nodes: relative residuals with Huber weights, and a weak
regularity fills nodes that no measurement reaches: each node is drawn to the line between its
neighbours along both axes, and the ratio of two neighbouring rows to staying the same from column
to column. Values that fall along an axis are penalised on the way and removed at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix, diags, vstack
from scipy.sparse.linalg import spsolve

from controller.costs.tables import Floats

_HUBER = 0.03
_ROUNDS = 14
_STIFF = 3.0
_TWIST = 0.05


def fit_grid(
    first: Floats,
    second: Floats,
    y: Floats,
    rows: Floats,
    columns: Floats,
    smooth: float = 0.05,
) -> Floats:
    """Node values (len(rows), len(columns)) from y (n,) > 0 at (first, second), each (n,).

    `smooth` weighs a node's relative distance from the straight line between its neighbours
    against a measurement's relative error; larger follows the measurements less. The change of
    a row's ratio to its neighbour from column to column weighs the same.
    """
    design = bilinear(first, second, rows, columns)
    bends = bends_of(rows, columns)
    rises = first_differences(len(rows), len(columns))
    twists = cross_differences(len(rows), len(columns)) * _TWIST
    logs = np.log(y)
    theta = np.full(len(rows) * len(columns), float(np.median(logs)))
    weights = np.ones(len(y))
    for step in range(_ROUNDS):
        nodes = np.exp(theta)
        predicted = np.maximum(design @ nodes, 1e-300)
        residual = logs - np.log(predicted)
        if step >= 3:  # the first steps only find the neighbourhood
            weights = np.minimum(1.0, _HUBER / np.maximum(np.abs(residual), 1e-12))
        jacobian = diags(1.0 / predicted) @ design @ diags(nodes)
        bent, by_bent = bends.relative(nodes)
        falls = _falls(theta, rises)
        held = vstack([by_bent * smooth, falls, twists])
        holds = np.concatenate([bent * smooth, falls @ theta, twists @ theta])
        theta = theta + _newton(jacobian, residual, weights, held, holds)
    return monotone(np.exp(theta).reshape(len(rows), len(columns)))


def _newton(
    jacobian: csr_matrix, residual: Floats, weights: Floats, held: csr_matrix, holds: Floats
) -> Floats:
    """One damped step that lowers the residuals and the penalties `holds` together."""
    normal = jacobian.T @ diags(weights) @ jacobian + held.T @ held
    normal = normal + 1e-6 * diags(np.ones(normal.shape[0]))
    gradient = jacobian.T @ (weights * residual) - held.T @ holds
    step: Floats = spsolve(normal.tocsc(), gradient)
    return np.clip(step, -1.0, 1.0)


def _falls(theta: Floats, rises: csr_matrix) -> csr_matrix:
    """The neighbour differences that fall at present, weighted so that they do not pay."""
    falling: csr_matrix = rises[(rises @ theta) < 0.0] * _STIFF
    return falling


def first_differences(height: int, width: int) -> csr_matrix:
    """(pairs, nodes): upper minus lower neighbour along both axes of a row-major table."""
    index = np.arange(height * width).reshape(height, width)
    lower = np.concatenate([index[:-1].ravel(), index[:, :-1].ravel()])
    upper = np.concatenate([index[1:].ravel(), index[:, 1:].ravel()])
    count = len(lower)
    data = np.concatenate([np.ones(count), -np.ones(count)])
    at = np.tile(np.arange(count), 2)
    nodes = np.concatenate([upper, lower])
    return coo_matrix((data, (at, nodes)), shape=(count, height * width)).tocsr()


def cross_differences(height: int, width: int) -> csr_matrix:
    """(squares, nodes): how much the ratio of two neighbouring rows changes by one column."""
    index = np.arange(height * width).reshape(height, width)
    corners = index[:-1, :-1], index[1:, 1:], index[:-1, 1:], index[1:, :-1]
    count = corners[0].size
    data = np.repeat([1.0, 1.0, -1.0, -1.0], count)
    at = np.tile(np.arange(count), 4)
    nodes = np.concatenate([corner.ravel() for corner in corners])
    return coo_matrix((data, (at, nodes)), shape=(count, height * width)).tocsr()


def _axis(at: Floats, grid: Floats) -> tuple[np.ndarray, Floats]:
    """Lower neighbour and the weight of the upper one; held before the grid, continued after."""
    if len(grid) == 1:
        return np.zeros(len(at), dtype=int), np.zeros(len(at))
    index = np.clip(np.searchsorted(grid, at, side="right") - 1, 0, len(grid) - 2)
    weight = (at - grid[index]) / (grid[index + 1] - grid[index])
    return index, np.maximum(weight, 0.0)


def bilinear(first: Floats, second: Floats, rows: Floats, columns: Floats) -> csr_matrix:
    """(n, nodes): the weights of the nodes, row-major, at every point (first, second)."""
    i, u = _axis(first, rows)
    j, v = _axis(second, columns)
    n, width = len(first), len(columns)
    entries = []
    for di, wi in ((0, 1 - u), (1, u)):
        for dj, wj in ((0, 1 - v), (1, v)):
            node = np.minimum(i + di, len(rows) - 1) * width + np.minimum(j + dj, width - 1)
            entries.append((wi * wj, np.arange(n), node))
    data, at, node = (np.concatenate(part) for part in zip(*entries, strict=True))
    return coo_matrix((data, (at, node)), shape=(n, len(rows) * width)).tocsr()


class Bends(NamedTuple):
    """Where a table departs from being linear along its axes, as matrices over its nodes."""

    gap: csr_matrix  # (bends, nodes): node minus the straight line between its neighbours
    middle: csr_matrix  # (bends, nodes): the node itself

    def relative(self, nodes: Floats) -> tuple[Floats, csr_matrix]:
        """Gap over value (bends,), and its derivative by the logarithms of the nodes."""
        value = self.middle @ nodes
        ratio = (self.gap @ nodes) / value
        jacobian = diags(1.0 / value) @ self.gap @ diags(nodes) - diags(ratio) @ self.middle
        return ratio, jacobian.tocsr()


def bends_of(rows: Floats, columns: Floats) -> Bends:
    """The bends of a row-major table along both axes."""
    index = np.arange(len(rows) * len(columns)).reshape(len(rows), len(columns))
    gaps, middles = [], []
    for grid, lanes in ((rows, index), (columns, index.T)):
        for k in range(1, len(grid) - 1):
            weight = (grid[k] - grid[k - 1]) / (grid[k + 1] - grid[k - 1])
            count, at = lanes.shape[1], np.arange(lanes.shape[1])
            data = np.repeat([weight - 1.0, 1.0, -weight], count)
            nodes = np.concatenate([lanes[k - 1], lanes[k], lanes[k + 1]])
            shape = (count, index.size)
            gaps.append(coo_matrix((data, (np.tile(at, 3), nodes)), shape=shape))
            middles.append(coo_matrix((np.ones(count), (at, lanes[k])), shape=shape))
    if not gaps:
        return Bends(csr_matrix((0, index.size)), csr_matrix((0, index.size)))
    return Bends(vstack(gaps).tocsr(), vstack(middles).tocsr())


def monotone(table: Floats) -> Floats:
    """The closest of simple monotone tables: midway between running maxima and minima."""
    upper = np.maximum.accumulate(np.maximum.accumulate(table, 0), 1)
    flipped = table[::-1, ::-1]
    lower = np.minimum.accumulate(np.minimum.accumulate(flipped, 0), 1)[::-1, ::-1]
    return (upper + lower) / 2
