# SPDX-License-Identifier: Apache-2.0
"""Compiled evaluation of `StepTables`: the one law of step times, prefills and transfers.

Owns: the arithmetic, for callers that are compiled themselves (simulator) and, through
`controller.costs.model`, for Python. Does not own: where the numbers come from.

Every result is in seconds and finite. It never falls when context or pairs grow, when a sequence
of the batch's mean context joins, or when prompt tokens of the step's mean attended length join.
(At equal *total* context more and shorter sequences can really be faster, since they fill the GPU
better.) Outside the grids values continue along the last piece, or in proportion (tables).
Look-ups bisect grids of at most some dozens of points, each grid once a step. What looks up is
inlined (`leaf`): the twenty arrays of the tables as arguments cost more than a look-up does.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from controller.costs.compiled import pure
from controller.costs.tables import (
    BANDWIDTH_BYTES_S,
    BYTES_PER_TOKEN,
    LATENCY_S,
    MAX_ATTENDED,
    MAX_BATCH,
    MAX_CONTEXT,
    MAX_STEP_CHUNK,
    PAD_MIXED,
    VERIFIED,
    Floats,
    StepTables,
)

leaf = njit(cache=True, nogil=True, inline="always")


@leaf
def bracket(grid: Floats, at: float) -> int:
    """The largest i with grid[i] <= at; -1 before the first point."""
    low, high = -1, grid.size
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] <= at:
            low = middle
        else:
            high = middle
    return low


@leaf
def curve(grid: Floats, values: Floats, at: float) -> float:
    """Piecewise linear; constant before the first point, last slope after the last; 0 if empty."""
    if grid.size == 0:
        return 0.0
    i = bracket(grid, at)
    if i < 0 or grid.size == 1:
        return float(values[0])
    i = min(i, grid.size - 2)
    slope = (values[i + 1] - values[i]) / (grid[i + 1] - grid[i])
    return float(values[i] + slope * (at - grid[i]))


@leaf
def row_weights(rows: Floats, count: float) -> tuple[int, float, float]:
    """(i, weight of row i, weight of row i + 1) for `count` items; the second may be 0."""
    i = bracket(rows, count)
    last = rows.size - 1
    if i < 0:
        return 0, 1.0, 0.0
    if i == last:
        return last, count / rows[last] if rows[last] > 0.0 else 1.0, 0.0
    weight = (count - rows[i]) / (rows[i + 1] - rows[i])
    return i, 1.0 - weight, weight


@leaf
def segment(
    rows: Floats, sizes: Floats, values: Floats, count: float, size: float
) -> tuple[float, float, float]:
    """(value, slope by size, size where the slope changes) of a table at (count, size)."""
    return _segment(rows, sizes, values, count, size, bracket(sizes, size))


@leaf
def _segment(
    rows: Floats, sizes: Floats, values: Floats, count: float, size: float, j: int
) -> tuple[float, float, float]:
    """`segment` where the bracket `j` of `size` is known."""
    i, low, high = row_weights(rows, count)
    width = sizes.size
    start = i * width
    other = start + width if high > 0.0 else start
    if j < 0 or width == 1:
        until = sizes[0] if j < 0 and width > 1 else np.inf
        return low * values[start] + high * values[other], 0.0, until
    until = sizes[j + 1] if j < width - 1 else np.inf
    j = min(j, width - 2)
    left = low * values[start + j] + high * values[other + j]
    right = low * values[start + j + 1] + high * values[other + j + 1]
    slope = (right - left) / (sizes[j + 1] - sizes[j])
    return left + slope * (size - sizes[j]), slope, until


@leaf
def padded(sizes: Floats, tokens: float) -> float:
    """Tokens that a CUDA graph computes: the next capture size, none beyond the largest."""
    if sizes.size == 0 or tokens > sizes[-1]:
        return tokens
    i = bracket(sizes, tokens)
    return float(sizes[i]) if i >= 0 and sizes[i] == tokens else float(sizes[i + 1])


@leaf
def decode_attention_s(t: StepTables, batch: float, context: float) -> float:
    """Attention of a pure decode step of `batch` > 0 sequences."""
    return segment(t.batch, t.context, t.decode_s, batch, context / batch)[0]


@leaf
def prefill_attention_s(t: StepTables, chunk: float, pairs: float) -> float:
    """Attention of a pure prefill step of `chunk` > 0 tokens."""
    return segment(t.chunk, t.attended, t.prefill_s, chunk, pairs / chunk)[0]


@leaf
def _on_row(sizes: Floats, values: Floats, i: int, size: float, j: int) -> float:
    """A table's value on its row `i`, where the bracket `j` of `size` is known."""
    start, width = i * sizes.size, sizes.size
    if j < 0 or width == 1:
        return float(values[start])
    j = min(j, width - 2)
    left, right = values[start + j], values[start + j + 1]
    return float(left + (right - left) / (sizes[j + 1] - sizes[j]) * (size - sizes[j]))


@leaf
def overlap(t: StepTables, i: int, j: int, share: float) -> float:
    """Time of a mixed attention over the sum of its parts in cell (chunk i, batch j)."""
    k = min(max(bracket(t.mixed_share, share), 0), t.mixed_share.size - 2)
    w = (share - t.mixed_share[k]) / (t.mixed_share[k + 1] - t.mixed_share[k])
    start = (i * t.mixed_batch.size + j) * t.mixed_share.size + k
    return float((1.0 - w) * t.overlap[start] + w * t.overlap[start + 1])


@pure
def mixed_attention_s(
    t: StepTables, batch: float, context: float, chunk: float, pairs: float
) -> float:
    """Attention of a step that holds decodes and prompt tokens; never below either alone.

    Four cells are blended, each with the parts as its own chunk and batch have them.
    """
    size, attended = context / batch, pairs / chunk
    alone = segment(t.batch, t.context, t.decode_s, batch, size)[0]
    z = bracket(t.attended, attended)
    prefill = _segment(t.chunk, t.attended, t.prefill_s, chunk, attended, z)[0]
    if t.overlap.size == 0:
        return alone + prefill
    k = bracket(t.mixed_context, size)
    i, of_row, of_next_row = row_weights(t.mixed_chunk, chunk)
    j, of_column, of_next_column = row_weights(t.mixed_batch, batch)
    total = 0.0
    for row, row_weight in ((i, of_row), (i + 1, of_next_row)):
        if row_weight == 0.0:
            continue
        p = _segment(t.chunk, t.attended, t.prefill_s, t.mixed_chunk[row], attended, z)[0]
        for column, column_weight in ((j, of_column), (j + 1, of_next_column)):
            if column_weight == 0.0:
                continue
            d = _on_row(t.mixed_context, t.mixed_decode_s, column, size, k)
            both = p + d
            if both > 0.0:
                total += row_weight * column_weight * both * overlap(t, row, column, d / both)
    return max(total, alone, prefill)


@leaf
def shared_s(t: StepTables, batch: float, chunk: float) -> float:
    """The part of a step that does not depend on context: dense and per-sequence work."""
    decodes = batch * t.options[VERIFIED]
    tokens = padded(t.capture_sizes, decodes)
    if chunk > 0.0:
        # A mixed step outside graphs is not cheaper than the padded decodes alone.
        whole = decodes + chunk
        tokens = padded(t.capture_sizes, whole) if t.options[PAD_MIXED] else max(tokens, whole)
    sequences = batch + (1.0 if chunk > 0.0 else 0.0)
    return curve(t.dense_tokens, t.dense_s, tokens) + curve(t.sequences, t.sequence_s, sequences)


@pure
def step_s(t: StepTables, batch: float, context: float, chunk: float, pairs: float) -> float:
    """One engine step: `batch` decodes holding `context` KV tokens in all, `chunk` prompt tokens.

    `pairs` is the sum over the step's prompts of chunk*(history + chunk/2).
    """
    shared = shared_s(t, batch, chunk)
    if chunk <= 0.0:
        return shared if batch <= 0.0 else shared + decode_attention_s(t, batch, context)
    if batch <= 0.0:
        return shared + prefill_attention_s(t, chunk, pairs)
    return shared + mixed_attention_s(t, batch, context, chunk, pairs)


@pure
def decode_line(t: StepTables, batch: float, context: float) -> tuple[float, float, float]:
    """(a, c, until): a pure decode step of `batch` takes exactly a + c*x for x in [context, until].

    `x` is the total context. `until` is inf where the line holds for ever.
    """
    shared = shared_s(t, batch, 0.0)
    if batch <= 0.0:
        return shared, 0.0, np.inf
    size = context / batch
    value, slope, until = segment(t.batch, t.context, t.decode_s, batch, size)
    return shared + value - slope * size, slope / batch, until * batch


@pure
def _chunks_s(t: StepTables, history: float, chunk: float, count: float) -> float:
    """Attention of `count` steps of `chunk` tokens, each on the tokens of the ones before.

    The attended length grows by `chunk` a step: an arithmetic series inside every segment.
    """
    total, done = 0.0, 0.0
    while done < count:
        size = history + done * chunk + chunk / 2.0
        value, slope, until = segment(t.chunk, t.attended, t.prefill_s, chunk, size)
        steps = count - done
        if until < size + (steps - 1.0) * chunk:
            steps = max(1.0, math.ceil((until - size) / chunk))
        total += steps * (value + slope * chunk * (steps - 1.0) / 2.0)
        done += steps
    return total


@pure
def prefill_s(t: StepTables, history: float, increment: float, max_chunk: float) -> float:
    """A prefill of `increment` tokens on `history`, alone on a worker, in chunks of `max_chunk`."""
    if increment <= 0.0:
        return 0.0
    full = math.floor(increment / max_chunk)
    total = 0.0
    if full > 0.0:
        total = full * shared_s(t, 0.0, max_chunk) + _chunks_s(t, history, max_chunk, full)
    rest = increment - full * max_chunk
    if rest > 0.0:
        total += step_s(t, 0.0, 0.0, rest, rest * (history + full * max_chunk + rest / 2.0))
    return total


@pure
def transfer_s(t: StepTables, tokens: float) -> float:
    """Moving the KV of `tokens` tokens, alone on the link: latency + bytes/bandwidth; 0 for 0."""
    if tokens <= 0.0:
        return 0.0
    seconds = tokens * t.transfer[BYTES_PER_TOKEN] / t.transfer[BANDWIDTH_BYTES_S]
    return float(t.transfer[LATENCY_S] + seconds)


@pure
def extrapolates(t: StepTables, batch: float, context: float, chunk: float, pairs: float) -> bool:
    """Whether a step lies outside what the tables were fitted on."""
    if batch > t.limits[MAX_BATCH] or chunk > t.limits[MAX_STEP_CHUNK]:
        return True
    if batch > 0.0 and context > t.limits[MAX_CONTEXT] * batch:
        return True
    return bool(chunk > 0.0 and pairs > t.limits[MAX_ATTENDED] * chunk)
