# SPDX-License-Identifier: Apache-2.0
"""The kernels behind a cheap Python signature: two packed arrays instead of one per table.

Owns: unpacking `controller.costs.tables.pack` inside compiled code. Passing twenty arrays from
Python costs 4 microseconds a call as a tuple and 13 as a NamedTuple, two arrays well under one.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from controller.costs.compiled import pure
from controller.costs.kernels import extrapolates as _extrapolates
from controller.costs.kernels import prefill_s as _prefill_s
from controller.costs.kernels import step_s as _step_s
from controller.costs.kernels import transfer_s as _transfer_s
from controller.costs.tables import MAX_CHUNK, Floats, StepTables

Bounds = NDArray[np.int64]


# Inlined, hence compiled as its caller is. A function that returns arrays must count references
# exactly if its caller does, the simulator's kernels do not, and numba's disk cache keeps one
# version for both: whoever compiled it first would break the other.
@njit(nogil=True, inline="always")
def unpack(data: Floats, b: Bounds) -> StepTables:
    """The tables as views into `data`."""
    return StepTables(
        data[b[0] : b[1]],
        data[b[1] : b[2]],
        data[b[2] : b[3]],
        data[b[3] : b[4]],
        data[b[4] : b[5]],
        data[b[5] : b[6]],
        data[b[6] : b[7]],
        data[b[7] : b[8]],
        data[b[8] : b[9]],
        data[b[9] : b[10]],
        data[b[10] : b[11]],
        data[b[11] : b[12]],
        data[b[12] : b[13]],
        data[b[13] : b[14]],
        data[b[14] : b[15]],
        data[b[15] : b[16]],
        data[b[16] : b[17]],
        data[b[17] : b[18]],
        data[b[18] : b[19]],
        data[b[19] : b[20]],
    )


@pure
def step_s(
    data: Floats, bounds: Bounds, batch: float, context: float, chunk: float, pairs: float
) -> float:
    """`kernels.step_s`."""
    return _step_s(unpack(data, bounds), batch, context, chunk, pairs)


@pure
def steps_s(
    data: Floats,
    bounds: Bounds,
    batch: Floats,
    context: Floats,
    chunk: Floats,
    pairs: Floats,
    out: Floats,
) -> None:
    """`kernels.step_s` over arrays of shape (n,), into `out`."""
    for i in range(out.size):
        out[i] = step_s(data, bounds, batch[i], context[i], chunk[i], pairs[i])


@pure
def prefill_s(data: Floats, bounds: Bounds, history: float, increment: float) -> float:
    """`kernels.prefill_s` with the tables' own chunk."""
    tables = unpack(data, bounds)
    return _prefill_s(tables, history, increment, tables.options[MAX_CHUNK])


@pure
def transfer_s(data: Floats, bounds: Bounds, tokens: float) -> float:
    """`kernels.transfer_s`."""
    return _transfer_s(unpack(data, bounds), tokens)


@pure
def extrapolates(
    data: Floats, bounds: Bounds, batch: float, context: float, chunk: float, pairs: float
) -> bool:
    """`kernels.extrapolates`."""
    return _extrapolates(unpack(data, bounds), batch, context, chunk, pairs)


@pure
def prefills_s(data: Floats, bounds: Bounds, prompt: int, cached: Bounds, out: Floats) -> None:
    """`prefill_s` of one prompt for each number of cached tokens, shapes (n,).

    The last prompt token is always computed, also when the whole prompt is cached.
    """
    tables = unpack(data, bounds)
    known, known_s = -1, 0.0
    plain_s = _prefill_s(tables, 0.0, float(prompt), tables.options[MAX_CHUNK])
    for i in range(cached.size):
        history = min(cached[i], prompt - 1)
        if history == 0:  # most workers know nothing of a prompt
            out[i] = plain_s
            continue
        if history != known:
            chunk = tables.options[MAX_CHUNK]
            known, known_s = (
                history,
                _prefill_s(tables, float(history), float(prompt - history), chunk),
            )
        out[i] = known_s
