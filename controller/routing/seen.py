# SPDX-License-Identifier: Apache-2.0
"""What a placement rule saw of each candidate, as columns of the decision log.

Owns: which candidates of a large pool are kept, and Eq. 1 and Eq. 2 for each of them, whatever the
rule compared. Does not own: the log's format (decision_record.py), the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from controller.costs.model import TableCost
from controller.routing.decision_record import DecodeSeen, PrefillSeen
from controller.routing.estimates import Estimates, own_times_s
from controller.routing.units import rank_of, worker_of
from controller.types import ClusterView, Decision, FloatArray, IntArray, PrefillTask

MOST = 16
"""Candidates of a pool that a row keeps, beside the chosen one."""
_NO_LIMIT = 1 << 61


def prefill_seen(
    costs: TableCost, task: PrefillTask, view: ClusterView, decision: Decision
) -> PrefillSeen:
    """The prefill pool as `decision` found it."""
    pool, ids = view.prefill, view.prefill.worker_ids
    if not ids:
        return PrefillSeen()
    own_s = own_times_s(costs, task, view)
    ttft_s: FloatArray = own_s + pool.queue_s + costs.kv_transfer_s(task.increment_tokens)
    rows = _kept(ttft_s, ids, decision.worker_id)
    kept = tuple(ids[k] for k in rows)
    return PrefillSeen(
        worker_ids=tuple(map(worker_of, kept)),
        cached_tokens=_whole(pool.cached_tokens, rows),
        queued_tokens=_whole(pool.tokens, rows),
        queue_s=_seconds(pool.queue_s, rows),
        ttft_window_s=_seconds(pool.ttft_window_s, rows),
        own_s=_seconds(own_s, rows),
        ttft_s=_seconds(ttft_s, rows),
        misses=_named(decision.misses, kept) if decision.misses else (),
        ranks=tuple(map(rank_of, kept)) if any(map(rank_of, kept)) else (),
        of=len(ids),
    )


def decode_seen(
    costs: TableCost, task: PrefillTask, view: ClusterView, decision: Decision
) -> DecodeSeen:
    """The decode pool as `decision` found it."""
    pool, ids = view.decode, view.decode.worker_ids
    if not ids:
        return DecodeSeen()
    cached = np.minimum(pool.cached_tokens, task.prompt_tokens - 1)
    ttft_s: FloatArray = costs.prefills_s(task.prompt_tokens, cached) + pool.queue_s
    bound = None if view.bound is None else ids[view.bound]
    place = bound if decision.decode_id is None else decision.decode_id
    rows = _kept(ttft_s, ids, place)
    kept = tuple(ids[k] for k in rows)
    local = dict(decision.misses).get("local")
    return DecodeSeen(
        worker_ids=kept,
        batch=_whole(pool.batch, rows),
        context_tokens=_whole(pool.context_tokens, rows),
        held_tokens=_whole(pool.held_tokens, rows),
        kv_tokens=tuple(
            None if tokens >= _NO_LIMIT else tokens for tokens in _whole(pool.kv_tokens, rows)
        ),
        cached_tokens=_whole(pool.cached_tokens, rows),
        queue_s=_seconds(pool.queue_s, rows),
        local_prefills=_whole(pool.local_prefills, rows),
        itl_window_s=_seconds(pool.itl_window_s, rows),
        ttft_s=_seconds(ttft_s, rows),
        misses=tuple(local if each == place else None for each in kept) if local else (),
        of=len(ids),
    )


def _kept(ttft_s: FloatArray, ids: Sequence[int], chosen: int | None) -> list[int]:
    """Rows of the pool to keep, in its order."""
    if len(ids) <= MOST:
        return list(range(len(ids)))
    rows = set(np.argpartition(ttft_s, MOST)[:MOST].tolist())
    if chosen in ids:
        rows.add(ids.index(chosen))
    return sorted(rows)


def _named(estimates: Estimates, ids: Sequence[int]) -> tuple[float | None, ...]:
    by_name = dict(estimates)
    return tuple(by_name.get(str(each)) for each in ids)


def _whole(column: IntArray, rows: list[int]) -> tuple[int, ...]:
    whole: Any = column[rows].tolist()
    return tuple(whole)


def _seconds(column: FloatArray, rows: list[int]) -> tuple[float | None, ...]:
    """Rounded to microseconds; None for what is not finite."""
    return tuple(round(s, 6) if math.isfinite(s) else None for s in column[rows].tolist())
