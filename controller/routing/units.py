# SPDX-License-Identifier: Apache-2.0
"""A worker's data-parallel ranks as candidates of their own: (worker, rank) in one number.

An engine with several ranks has a scheduler and a KV cache for each, so queues, reservations and
estimates are by rank. Rank 0 of a worker is the worker's own id: where there are no ranks, nothing
differs.
"""

from __future__ import annotations

from collections.abc import Iterable

_SHIFT = 64
_WORKER = (1 << _SHIFT) - 1


def unit(worker_id: int, rank: int = 0) -> int:
    """The candidate of a worker's rank; `worker_id` is a Dynamo instance id (64 bits)."""
    return worker_id | rank << _SHIFT


def worker_of(unit_id: int) -> int:
    """The Dynamo instance behind it."""
    return unit_id & _WORKER


def rank_of(unit_id: int) -> int:
    """Its data-parallel rank."""
    return unit_id >> _SHIFT


def siblings(unit_id: int, units: Iterable[int]) -> list[int]:
    """Those of `units` that share its worker: they die together."""
    worker_id = worker_of(unit_id)
    return [each for each in units if worker_of(each) == worker_id]
