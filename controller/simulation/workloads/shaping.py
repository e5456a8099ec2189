# SPDX-License-Identifier: Apache-2.0
"""Changes to a workload: rate, cuts, parts laid over or behind one another.

Owns: renumbering, so that the result is a valid workload again. Does not own: changes to a trace
before it becomes one (../trace_shaping).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controller.simulation.traces import TraceError
from controller.simulation.workloads.rows import numbered
from controller.simulation.workloads.workload import Workload, chain_heads, validate
from controller.types import IntArray


def scale_rate(workload: Workload, factor: float) -> Workload:
    """`factor` times as many arrivals a second. Pauses are the users' and tools' own and stay."""
    if not (math.isfinite(factor) and factor > 0):
        raise TraceError(f"{workload.name}: rate scale is {factor}: give a number above 0")
    return replace(workload, arrival_s=workload.arrival_s / factor)


def limit_duration(workload: Workload, duration_s: float) -> Workload:
    """Only what begins before `duration_s`, with everything that follows from it."""
    begins = workload.arrival_s[chain_heads(workload.after)]
    return _select(workload, np.flatnonzero(begins < duration_s))


def limit_requests(workload: Workload, limit: int) -> Workload:
    """The first `limit` rows; conversations may lose later rounds."""
    return _select(workload, np.arange(min(max(limit, 0), len(workload))))


def overlay(
    name: str,
    parts: Sequence[Workload],
    starts_s: Sequence[float],
    *,
    separate_tenants: bool = False,
    share_blocks: bool = False,
) -> Workload:
    """Part k begins at `starts_s[k]`; sessions and streams of different parts stay different.

    With `share_blocks` equal ids of two parts are the same block (the same templates); with
    `separate_tenants` so many tenants are added up, else equal numbers are one tenant.
    """
    if not parts:
        raise TraceError(f"{name}: no part")
    sizes = {part.block_tokens for part in parts if len(part.block_ids)}
    if len(sizes) > 1:
        raise TraceError(
            f"{name}: parts have shared blocks of {sorted(sizes)} tokens; use one size"
        )
    rows = _offsets([len(part) for part in parts])
    sessions = _offsets([int(part.session.max()) + 1 for part in parts])
    streams = _offsets([int(part.stream.max()) + 1 for part in parts])
    tenants = _offsets([int(part.tenant.max()) + 1 for part in parts])
    blocks = _offsets([len(part.block_ids) for part in parts])
    moved = [
        replace(
            part,
            arrival_s=part.arrival_s + start_s,
            session=part.session + sessions[k],
            stream=part.stream + streams[k],
            after=np.where(part.after >= 0, part.after + rows[k], -1),
            tenant=part.tenant + tenants[k] * separate_tenants,
            block_ids=part.block_ids + blocks[k] * (not share_blocks),
            block_starts=part.block_starts[1:] + blocks[k],
        )
        for k, (part, start_s) in enumerate(zip(parts, starts_s, strict=True))
    ]
    joined = _joined(name, moved, sizes.pop() if sizes else parts[0].block_tokens)
    begins = joined.arrival_s[chain_heads(joined.after)]
    return _select(joined, np.argsort(begins, kind="stable"))


def concatenate(
    name: str, parts: Sequence[Workload], durations_s: Sequence[float], **options: bool
) -> Workload:
    """One part after the other, each given the time `durations_s[k]`; options as `overlay`."""
    starts_s = np.cumsum(durations_s) - np.asarray(durations_s)
    return overlay(name, parts, starts_s.tolist(), **options)


def _joined(name: str, parts: Sequence[Workload], block_tokens: int) -> Workload:
    columns = {
        field: np.concatenate([getattr(part, field) for part in parts])
        for field in Workload.__slots__
        if field not in ("name", "block_tokens", "block_starts")
    }
    starts = np.concatenate([[0], *(part.block_starts for part in parts)])
    return Workload(name=name, block_tokens=block_tokens, block_starts=starts, **columns)


def _offsets(counts: list[int]) -> list[int]:
    return [0, *np.cumsum(counts)[:-1].tolist()]


def _select(w: Workload, rows: NDArray[np.intp]) -> Workload:
    """Those rows in that order; a predecessor must be among them, before its follower."""
    if not len(rows):
        raise TraceError(f"{w.name}: no request is left after the cuts; relax them")
    place = np.full(len(w) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    counts = np.diff(w.block_starts)[rows]
    starts = np.concatenate([[0], np.cumsum(counts)])
    source = np.arange(starts[-1]) - np.repeat(starts[:-1] - w.block_starts[rows], counts)
    plain = [
        "arrival_s",
        "think_s",
        "prompt_tokens",
        "output_tokens",
        "round",
        "priority",
        "tenant",
    ]
    taken = {field: getattr(w, field)[rows] for field in plain}
    return validate(
        Workload(
            name=w.name,
            session=numbered(w.session[rows]),
            stream=numbered(w.stream[rows]),
            after=place[w.after[rows]],
            block_tokens=w.block_tokens,
            block_ids=_renumbered(w.block_ids[source]),
            block_starts=starts,
            **taken,
        )
    )


def _renumbered(ids: IntArray) -> IntArray:
    return numbered(ids) if len(ids) else ids
