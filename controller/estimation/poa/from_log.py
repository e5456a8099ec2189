# SPDX-License-Identifier: Apache-2.0
"""Placement windows off our router's decision log (controller.routing.decision_record).

Owns: which decisions make a window, what places they had, what a local prefill costs others. Does
not own: the format of the log, the loss.

A window is `size` consecutive decisions (default: as many as there are prefill workers, at least
two). Its state is what the first of them saw. A worker that a later row does not show (of more than
16 the log keeps those with the least estimates) costs it what the prompt costs without a prefix
hit. Local places are the decode workers; of a session that is bound, only the bound one. Decisions
that were forced (empty pool, several sequences) or ended before a choice tell nothing and are left
out.

A local prefill of own time T in k steps beside b running decodes delays each of them by T less the
k steps that they would have made anyway; it turns all of them into misses where their windowed ITL
was within the limit and, with that delay spread over an answer of typical length, would not be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.estimation.poa.window import PlacementWindow, make_window
from controller.routing.decision_record import DecisionRow, Logged
from controller.types import DecisionReason, Place

_FORCED = {
    DecisionReason.PREFILL_POOL_EMPTY.value,
    DecisionReason.NO_DECODE_WORKER.value,
    DecisionReason.MULTIPLE_SEQUENCES.value,
}
_LEAST = 2


@dataclass(frozen=True, slots=True)
class LogParams:
    """What the log does not say."""

    size: int | None = None
    """Requests a window; None: the number of prefill workers, at least two."""
    step_tokens: int = 2048
    """Tokens that a decode worker computes in one step of a local prefill."""
    answer_tokens: float = 128.0
    """Typical length of an answer: a delay is spread over its gaps."""


@dataclass(frozen=True, slots=True)
class Windows:
    """What came of a log, and what did not."""

    windows: tuple[PlacementWindow, ...]
    used: int
    skipped: Mapping[str, int]
    """Decisions that are in no window, by why."""


def windows_of_log(logged: Sequence[Logged], params: LogParams | None = None) -> Windows:
    """Windows of the first legs in the log, in its order."""
    params = params or LogParams()
    skipped: Counter[str] = Counter()
    rows = [each.decision for each in logged if _tells(each.decision, skipped)]
    if not rows:
        return Windows((), 0, dict(skipped))
    workers = max(len(row.prefill.worker_ids) for row in rows)
    size = params.size or max(_LEAST, workers)
    windows = []
    for start in range(0, len(rows) - size + 1, size):
        end_s = rows[start + size].decided_s if start + size < len(rows) else None
        made = _window(rows[start : start + size], end_s, params)
        if made is None:
            skipped["chosen_place_not_seen"] += size
        else:
            windows.append(made)
    used = sum(window.requests for window in windows)
    skipped["left_over"] += len(rows) % size
    return Windows(tuple(windows), used, dict(skipped))


def _tells(row: DecisionRow, skipped: Counter[str]) -> bool:
    if row.migrations:
        why = "later_leg"
    elif row.place is None:
        why = "no_decision"
    elif row.reason in _FORCED:
        why = "forced"
    elif not row.prefill.worker_ids:
        why = "no_candidates"
    else:
        return True
    skipped[why] += 1
    return False


def _window(
    rows: Sequence[DecisionRow], end_s: float | None, params: LogParams
) -> PlacementWindow | None:
    places = _places(rows[0])
    index = {place: j for j, place in enumerate(places)}
    chosen = [index.get(_chosen(row), -1) for row in rows]
    if min(chosen) < 0:
        return None
    start_s = rows[0].decided_s
    table = [_costs(row, places, params) for row in rows]
    own, harm, misses = (np.array([each[k] for each in table]) for k in range(3))
    try:
        return make_window(
            np.maximum.accumulate([max(0.0, row.decided_s - start_s) for row in rows]),
            own,
            np.array([row.ttft_limit_ms / 1e3 for row in rows]),
            np.array(chosen),
            _free(rows[0], places),
            harm_s=harm,
            harm_misses=misses,
            end_s=None if end_s is None else max(0.0, end_s - start_s),
        )
    except ValueError:
        return None


_PlaceKey = tuple[Place, int]


def _places(row: DecisionRow) -> list[_PlaceKey]:
    remote = [(Place.REMOTE, worker) for worker in row.prefill.worker_ids]
    return [*remote, *((Place.LOCAL, worker) for worker in row.decode.worker_ids)]


def _chosen(row: DecisionRow) -> _PlaceKey:
    if row.place == Place.REMOTE.value:
        return Place.REMOTE, row.worker_id if row.worker_id is not None else -1
    decode = row.decode_id if row.decode_id is not None else row.bound
    return Place.LOCAL, decode if decode is not None else -1


def _free(row: DecisionRow, places: Iterable[_PlaceKey]) -> np.ndarray:
    queues = {
        **{(Place.REMOTE, w): q for w, q in _pairs(row.prefill.worker_ids, row.prefill.queue_s)},
        **{(Place.LOCAL, w): q for w, q in _pairs(row.decode.worker_ids, row.decode.queue_s)},
    }
    return np.array([max(0.0, queues.get(place) or 0.0) for place in places])


def _costs(
    row: DecisionRow, places: Sequence[_PlaceKey], params: LogParams
) -> tuple[list[float], list[float], list[float]]:
    remote = {w: s for w, s in _pairs(row.prefill.worker_ids, row.prefill.own_s) if s is not None}
    cold_s = max(remote.values(), default=math.inf)
    local = _local(row, params)
    own, harm, misses = [], [], []
    for place, worker in places:
        if place is Place.REMOTE:
            own.append(remote.get(worker, cold_s))
            harm.append(0.0)
            misses.append(0.0)
        else:
            cost = local.get(worker, (math.inf, 0.0, 0.0))
            own.append(cost[0])
            harm.append(cost[1])
            misses.append(cost[2])
    return own, harm, misses


def _local(row: DecisionRow, params: LogParams) -> dict[int, tuple[float, float, float]]:
    """(own, harm in seconds, harm in misses) of each decode worker that may prefill."""
    found = {}
    for k, worker in enumerate(row.decode.worker_ids):
        if not row.fresh and row.bound is not None and worker != row.bound:
            continue
        ttft_s, queue_s = _at(row.decode.ttft_s, k), _at(row.decode.queue_s, k)
        if ttft_s is None:
            continue
        own_s = max(0.0, ttft_s - (queue_s or 0.0))
        found[worker] = (own_s, *_harm(row, k, own_s, params))
    return found


def _harm(row: DecisionRow, k: int, own_s: float, params: LogParams) -> tuple[float, float]:
    batch, itl_s = _at(row.decode.batch, k) or 0, _at(row.decode.itl_window_s, k)
    lacking = row.prompt_tokens - (_at(row.decode.cached_tokens, k) or 0)
    steps = max(1, math.ceil(lacking / params.step_tokens))
    delay_s = max(0.0, own_s - steps * (itl_s or 0.0))
    limit_s = row.itl_limit_ms / 1e3
    after_s = (itl_s or 0.0) + delay_s / max(1.0, params.answer_tokens - 1.0)
    turned = itl_s is not None and itl_s <= limit_s < after_s
    return batch * delay_s, float(batch) if turned else 0.0


def _pairs(ids: Sequence[int], values: Sequence[float | None]) -> list[tuple[int, float | None]]:
    return [(worker, values[k] if k < len(values) else None) for k, worker in enumerate(ids)]


def _at(values: Sequence[float | None], k: int) -> float | None:
    return values[k] if k < len(values) else None
