# SPDX-License-Identifier: Apache-2.0
"""What a placement rule saw of each candidate, as columns of the decision log.

Owns: which candidates of a large pool are kept, and Eq. 1 and Eq. 2 for each of them, whatever the
rule compared. Does not own: the log's format (decision_record.py), the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from controller.costs.model import TableCost
from controller.routing.decision_record import DecodeSeen, PrefillSeen
from controller.routing.estimates import Estimates, own_times_s
from controller.routing.units import rank_of, worker_of
from controller.types import ClusterView, Decision, FloatArray, PrefillTask

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
    kept = ids if rows is None else tuple(ids[k] for k in rows)
    cached, queued = _columns(rows, pool.cached_tokens, pool.tokens)
    times_s = pool.queue_s, pool.ttft_window_s, own_s, ttft_s
    queue_s, window_s, alone_s, in_all_s = _rounded(_columns(rows, *times_s))
    return PrefillSeen(
        worker_ids=tuple(map(worker_of, kept)),
        cached_tokens=tuple(cached.tolist()),
        queued_tokens=tuple(queued.tolist()),
        queue_s=queue_s,
        ttft_window_s=window_s,
        own_s=alone_s,
        ttft_s=in_all_s,
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
    kept = ids if rows is None else tuple(ids[k] for k in rows)
    counts = pool.batch, pool.context_tokens, pool.held_tokens, pool.cached_tokens
    batch, context, held, hits = _columns(rows, *counts)
    kv_tokens, local_prefills = _columns(rows, pool.kv_tokens, pool.local_prefills)
    queue_s, itl_s, own_ttft_s = _rounded(_columns(rows, pool.queue_s, pool.itl_window_s, ttft_s))
    local = dict(decision.misses).get("local")
    return DecodeSeen(
        worker_ids=kept,
        batch=tuple(batch.tolist()),
        context_tokens=tuple(context.tolist()),
        held_tokens=tuple(held.tolist()),
        kv_tokens=tuple(None if n >= _NO_LIMIT else n for n in kv_tokens.tolist()),
        cached_tokens=tuple(hits.tolist()),
        queue_s=queue_s,
        local_prefills=tuple(local_prefills.tolist()),
        itl_window_s=itl_s,
        ttft_s=own_ttft_s,
        misses=tuple(local if each == place else None for each in kept) if local else (),
        of=len(ids),
    )


def _kept(ttft_s: FloatArray, ids: Sequence[int], chosen: int | None) -> list[int] | None:
    """Rows of the pool to keep, in its order; None: all."""
    if len(ids) <= MOST:
        return None
    rows = set(np.argpartition(ttft_s, MOST)[:MOST].tolist())
    if chosen in ids:
        rows.add(ids.index(chosen))
    return sorted(rows)


def _columns(rows: list[int] | None, *columns: Any) -> Any:
    """The kept rows of each column."""
    return columns if rows is None else [column[rows] for column in columns]


def _rounded(columns: Sequence[FloatArray]) -> list[tuple[float, ...]]:
    """To microseconds, all at once; what is not a number is written as null."""
    return [tuple(column) for column in np.round(np.array(columns), 6).tolist()]


def _named(estimates: Estimates, ids: Sequence[int]) -> tuple[float | None, ...]:
    by_name = dict(estimates)
    return tuple(by_name.get(str(each)) for each in ids)
