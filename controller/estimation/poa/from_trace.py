# SPDX-License-Identifier: Apache-2.0
"""Placement windows off Dynamo's own request trace: a deployment that does not run our router.

Owns: reading `dynamo.request.trace.v1` rows (DYN_REQUEST_TRACE=1), rebuilding what each prefill
worker had ahead and what a prompt would have cost elsewhere. Does not own: the loss.

- What a worker has ahead at t: the longest of the prefills that it had been given by t and not
ended.
- What a prompt costs: a line fitted to the trace's own prefill times by uncached tokens, or given.
- What would have been cached elsewhere: the longest prefix of the prompt's block hashes that the
  worker has computed before (nothing is forgotten, so it is what could have been there).

Dynamo 1.4.2 writes rows without workers and times for requests that name no session
(`x-dynamo-session-id`): such rows cannot be used, and are counted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controller.estimation.poa.from_log import Windows
from controller.estimation.poa.window import PlacementWindow, make_window

SCHEMA = "dynamo.request.trace.v1"
_LEAST_FIT = 8


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace, with what its placement needs."""

    arrived_s: float
    prompt_tokens: int
    cached_tokens: int
    waited_s: float
    prefill_s: float
    worker: int
    hashes: tuple[int, ...]
    block_tokens: int

    @property
    def ended_s(self) -> float:
        """End of its prefill."""
        return self.arrived_s + self.waited_s + self.prefill_s


def read_trace(lines: Iterable[str]) -> tuple[list[TraceRow], dict[str, int]]:
    """Rows in order of arrival, and the lines that could not be used by why."""
    rows, skipped = [], Counter[str]()
    for line in lines:
        found = _row(line)
        if isinstance(found, TraceRow):
            rows.append(found)
        elif found:
            skipped[found] += 1
    rows.sort(key=lambda row: row.arrived_s)
    return rows, dict(skipped)


def _row(line: str) -> TraceRow | str:
    if not line.strip():
        return ""
    try:
        event = json.loads(line)
        event = event.get("event", event)
        if event.get("schema") != SCHEMA:
            return "other_schema"
        return _built(event.get("request") or {})
    except (ValueError, TypeError, AttributeError):
        return "unreadable"


def _built(request: Mapping[str, Any]) -> TraceRow | str:
    replay = request.get("replay") or {}
    worker = (request.get("worker") or {}).get("prefill_worker_id")
    arrived = _number(request.get("request_received_ms"))
    prompt = _number(request.get("input_tokens")) or _number(replay.get("input_length"))
    prefill = _number(request.get("prefill_time_ms"))
    if worker is None:
        return "names_no_prefill_worker"
    if arrived is None or prompt is None or prefill is None:
        return "lacks_times"
    return TraceRow(
        arrived_s=arrived / 1e3,
        prompt_tokens=int(prompt),
        cached_tokens=int(_number(request.get("cached_tokens")) or 0),
        waited_s=(_number(request.get("prefill_wait_time_ms")) or 0.0) / 1e3,
        prefill_s=prefill / 1e3,
        worker=int(worker),
        hashes=tuple(replay.get("input_sequence_hashes") or ()),
        block_tokens=int(_number(replay.get("trace_block_size")) or 0),
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


PrefillTime = Callable[[int], float]
"""Uncached tokens -> seconds, alone on a worker."""


def fitted_time(rows: Sequence[TraceRow]) -> PrefillTime | None:
    """A line through (uncached tokens, prefill time); None with too few or too equal prompts."""
    tokens = np.array([max(1, row.prompt_tokens - row.cached_tokens) for row in rows], float)
    times = np.array([row.prefill_s for row in rows])
    if len(rows) < _LEAST_FIT:
        return None
    if np.ptp(tokens) <= 0:
        mean = float(times.mean())
        return lambda uncached: mean
    slope, base = np.polyfit(tokens, times, 1)
    slope, base = max(0.0, float(slope)), max(0.0, float(base))
    return lambda uncached: base + slope * uncached


def windows_of_trace(
    rows: Sequence[TraceRow],
    workers: Sequence[int],
    ttft_limit_s: float,
    time_of: PrefillTime,
    size: int | None = None,
) -> Windows:
    """Windows of consecutive arrivals over the given prefill workers (those of the trace too)."""
    everyone = sorted({*workers, *(row.worker for row in rows)})
    if not rows or not everyone:
        return Windows((), 0, {})
    size = size or max(2, len(everyone))
    known: dict[int, set[int]] = {worker: set() for worker in everyone}
    windows: list[PlacementWindow] = []
    for start in range(0, len(rows) - size + 1, size):
        part = rows[start : start + size]
        later = rows[start + size].arrived_s if start + size < len(rows) else None
        windows.append(_window(rows[:start], part, everyone, known, ttft_limit_s, time_of, later))
        for row in part:
            known[row.worker].update(row.hashes)
    used = sum(window.requests for window in windows)
    return Windows(tuple(windows), used, {"left_over": len(rows) % size})


def _window(
    before: Sequence[TraceRow],
    part: Sequence[TraceRow],
    workers: Sequence[int],
    known: Mapping[int, set[int]],
    limit_s: float,
    time_of: PrefillTime,
    later_s: float | None,
) -> PlacementWindow:
    start_s = part[0].arrived_s
    index = {worker: j for j, worker in enumerate(workers)}
    free = np.zeros(len(workers))
    for row in before:
        j = index[row.worker]
        free[j] = max(free[j], row.ended_s - start_s)
    own = np.array(
        [[time_of(_uncached(row, worker, known[worker])) for worker in workers] for row in part]
    )
    return make_window(
        np.array([row.arrived_s - start_s for row in part]),
        own,
        np.full(len(part), limit_s),
        np.array([index[row.worker] for row in part]),
        free,
        end_s=None if later_s is None else later_s - start_s,
    )


def _uncached(row: TraceRow, worker: int, known: set[int]) -> int:
    if worker == row.worker:
        return max(1, row.prompt_tokens - row.cached_tokens)
    shared = 0
    for each in row.hashes:
        if each not in known:
            break
        shared += 1
    return max(1, row.prompt_tokens - shared * row.block_tokens)
