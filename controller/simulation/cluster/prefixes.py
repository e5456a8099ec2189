# SPDX-License-Identifier: Apache-2.0
"""The prompts of a workload as segments of text that many of them share.

Owns: cutting the block ids of a workload into segments. Does not own: what a cache holds of them
(prefix.py).

A segment is a maximal run of block ids that every prompt with one of them has as a whole, so a
cache needs no finer grain than runs of a segment. A prompt is a path of shared segments followed
by the private segment of its stream, which its later rounds continue. The path is kept for the
first round of a stream: later rounds begin with the same blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.simulation.workloads.workload import Workload
from controller.types import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """`path` has shape (total, 2): segment, ids of the prompt up to its end; `start` (n + 1,)."""

    shared: int
    start: IntArray
    path: IntArray

    @property
    def longest(self) -> int:
        """Shared segments of the longest path."""
        return int(np.diff(self.start).max(initial=0))


def segments(workload: Workload) -> Segments:
    """Cut the ids of all prompts."""
    ids, starts = workload.block_ids, workload.block_starts
    if not len(ids):
        return Segments(0, np.zeros(len(starts), np.int64), np.zeros((0, 2), np.int64))
    begins = _begins(ids, starts)
    numbers = np.cumsum(begins) - 1
    segment_of_id = np.where(begins, numbers, -1)
    opens = begins[ids]
    opened = np.maximum.accumulate(np.where(opens, np.arange(len(ids)), 0))
    closes = np.append(opens[1:], True)
    closes[starts[1:][np.diff(starts) > 0] - 1] = True
    row = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    ends = np.flatnonzero(closes)
    path = np.stack([segment_of_id[ids[opened[ends]]], ends + 1 - starts[row[ends]]], axis=1)
    counts = np.bincount(row[ends], minlength=len(starts) - 1)
    return Segments(int(begins.sum()), np.concatenate([[0], np.cumsum(counts)]), path)


def _begins(ids: IntArray, starts: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(largest id + 1,) whether an id begins a segment: not always behind one and the same id
    that is always before it."""
    size = int(ids.max()) + 1
    first = np.zeros(len(ids), dtype=bool)
    first[starts[:-1][np.diff(starts) > 0]] = True
    before = np.where(first, -1, np.roll(ids, 1))
    after = np.where(np.append(first[1:], True), -1, np.roll(ids, -1))
    behind = _only(size, ids, before)
    ahead = _only(size, ids, after)
    joined = (behind >= 0) & (ahead[np.maximum(behind, 0)] == np.arange(size))
    return ~joined


def _only(size: int, ids: IntArray, neighbour: IntArray) -> IntArray:
    """(size,) the neighbour that an id always has, -1 where it differs or is missing."""
    low = np.full(size, np.iinfo(np.int64).max)
    high = np.full(size, -1)
    np.minimum.at(low, ids, neighbour)
    np.maximum.at(high, ids, neighbour)
    return np.where(low == high, high, -1)
