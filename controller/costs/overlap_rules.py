# SPDX-License-Identifier: Apache-2.0
"""What makes mixed steps monotone, and the smallest changes of an overlap table that do.

Owns: the two rules and their enforcement. With f(P, D) = (P + D) * overlap(D / (P + D)):

1. Within a cell (chunk, batch) f does not fall with P or D. On a piece where the overlap is linear
   in the share, f = p*P + d*D; p and d are from 0 up exactly if overlap/share does not rise and
   overlap/(1 - share) does not fall along the share.
2. A step of a larger chunk (batch) is not faster at equal attended length (context) than one of
   the smaller, with the parts of each row's own: compared on the lattice of the tables' nodes and
   the points midway between them.

Both rules are linear in the overlap, so the mean of a table raised to keep them and of one lowered
to keep them keeps them too.
"""

from __future__ import annotations

import numpy as np

from controller.costs.tables import Floats

_MARGIN = 1e-3  # relative distance that survives rounding in files
_PASSES = 8


def enforce(overlap: Floats, prefill_s: Floats, decode_s: Floats, share: Floats) -> Floats:
    """An overlap table (chunk, batch, share), ends 1, that keeps both rules.

    prefill_s (chunk, attended) and decode_s (batch, context) are the tables of the parts.
    """
    p, d = _refined(prefill_s), _refined(decode_s)
    table = overlap.copy()
    table[:, :, [0, -1]] = 1.0
    kept: Floats = (_sweep(table, p, d, share, True) + _sweep(table, p, d, share, False)) / 2
    return kept


def lattice_times(overlap: Floats, prefill_s: Floats, decode_s: Floats, share: Floats) -> Floats:
    """Mixed times (chunk, batch, attended, context) at the nodes and midway between them.

    prefill_s (chunk, attended), decode_s (batch, context), overlap (chunk, batch, share).
    """
    p, d = _refined(prefill_s)[:, None, :, None], _refined(decode_s)[None, :, None, :]
    total = p + d
    at = np.divide(d, total, out=np.zeros(total.shape), where=total > 0)
    k = np.clip(np.searchsorted(share, at, side="right") - 1, 0, len(share) - 2)
    w = (at - share[k]) / (share[k + 1] - share[k])
    i = np.arange(len(prefill_s))[:, None, None, None]
    j = np.arange(len(decode_s))[None, :, None, None]
    times: Floats = total * ((1 - w) * overlap[i, j, k] + w * overlap[i, j, k + 1])
    return times


def _refined(table: Floats) -> Floats:
    """Columns and the points midway between them."""
    wide = np.empty((len(table), 2 * table.shape[1] - 1))
    wide[:, ::2], wide[:, 1::2] = table, (table[:, :-1] + table[:, 1:]) / 2
    return wide


def _sweep(table: Floats, p: Floats, d: Floats, share: Floats, up: bool) -> Floats:
    """Raise cells from the first to the last, or lower them from the last to the first."""
    h: Floats = table.copy()
    rows, columns = table.shape[:2]
    order = [(i, j) for i in range(rows) for j in range(columns)]
    step = -1 if up else 1
    for i, j in order if up else order[::-1]:
        h[i, j] = cone(h[i, j], share, up)
        bounds = [
            _times(h[a, b], p[a], d[b], share)
            for a, b in ((i + step, j), (i, j + step))
            if 0 <= a < rows and 0 <= b < columns
        ]
        if bounds:
            limit = np.maximum(*bounds) if up and len(bounds) > 1 else bounds[0]
            limit = np.minimum(*bounds) if not up and len(bounds) > 1 else limit
            h[i, j] = _bounded(h[i, j], limit, p[i], d[j], share, up)
    return h


def _times(h: Floats, p: Floats, d: Floats, share: Floats) -> Floats:
    total = p[:, None] + d[None, :]
    times: Floats = total * np.interp(_over(d[None, :], total), share, h)
    return times


def _over(part: Floats, total: Floats) -> Floats:
    """part/total, 0 where a step has neither part."""
    ratio: Floats = np.divide(part, total, out=np.zeros(total.shape), where=total > 0)
    return ratio


def _bounded(h: Floats, limit: Floats, p: Floats, d: Floats, share: Floats, up: bool) -> Floats:
    """Move the nodes beside every broken bound by what is missing there, and keep rule 1."""
    total = p[:, None] + d[None, :]
    at = _over(d[None, :], total).ravel()
    bound = _over(limit, total).ravel()
    k = np.clip(np.searchsorted(share, at, side="right") - 1, 0, len(share) - 2)
    for _ in range(_PASSES):
        missing = bound - np.interp(at, share, h)
        broken = missing > 0 if up else missing < 0
        if not broken.any():
            break
        push = np.zeros_like(h)
        for node in (k, k + 1):
            (np.maximum if up else np.minimum).at(push, node[broken], missing[broken])
        push[[0, -1]] = 0.0
        if not push.any():
            break
        h = cone(h + push, share, up)
    return h


def cone(h: Floats, share: Floats, up: bool) -> Floats:
    """Rule 1 for one cell (share,), ends held at 1, by raising or by lowering inner nodes."""
    h = h.copy()
    last = len(share) - 1
    # Where an end's 1 asks for it there is only one way: up.
    h[1:last] = np.maximum(h[1:last], np.maximum(share[1:last], 1 - share[1:last]) * (1 + _MARGIN))
    if up:
        for k in range(last - 1, 0, -1):
            h[k] = max(h[k], h[k + 1] * share[k] / share[k + 1] * (1 + _MARGIN))
        for k in range(1, last):
            h[k] = max(h[k], h[k - 1] * (1 - share[k]) / (1 - share[k - 1]) * (1 + _MARGIN))
        return h
    for k in range(1, last - 1):
        h[k + 1] = min(h[k + 1], h[k] * share[k + 1] / share[k])
    for k in range(last - 1, 1, -1):
        h[k - 1] = min(h[k - 1], h[k] * (1 - share[k - 1]) / (1 - share[k]))
    return h
