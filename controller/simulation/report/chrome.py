# SPDX-License-Identifier: Apache-2.0
"""Spans of a run in the Chrome trace event format, for Perfetto and chrome://tracing.

Owns: which spans there are and on which row. One process a worker and one for the router; its
threads are lanes, since requests of a batch overlap and spans of one thread must not. Does not
own: writing.

Format: Trace Event Format (Google, "complete" events X with ts and dur in microseconds, metadata
events M that name processes and threads).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from controller.simulation.cluster.result import SimResult
from controller.simulation.cluster.spec import ClusterSpec
from controller.simulation.report.parts import LOCAL, REMOTE, transfer_alone_s
from controller.types import FloatArray, IntArray

ROUTER = 0
"""Process number of the router; worker w has w + 1."""
_LANES = 10_000
"""Thread numbers a kind of span has in a process: it begins at kind * this."""


@dataclass(frozen=True, eq=False)
class _Spans:
    """Spans of one kind: parallel arrays of shape (k,)."""

    name: str
    kind: int
    process: IntArray
    start_s: FloatArray
    end_s: FloatArray
    row: IntArray


def chrome_events(result: SimResult, cluster: ClusterSpec) -> Iterator[dict[str, Any]]:
    """All events: names first, then spans by kind and time."""
    yield from _process_names(cluster)
    for spans in _all_spans(result, cluster):
        yield from _events(spans, result)


def _process_names(cluster: ClusterSpec) -> Iterator[dict[str, Any]]:
    names = ["router"]
    names += [f"prefill {i}" for i in range(len(cluster.prefill))]
    names += [f"decode {i}" for i in range(len(cluster.decode))]
    for process, name in enumerate(names):
        yield _meta("process_name", process, 0, {"name": name})
        yield _meta("process_sort_index", process, 0, {"sort_index": process})


def _all_spans(result: SimResult, cluster: ClusterSpec) -> Iterator[_Spans]:
    remote, local = result.place == REMOTE, result.place == LOCAL
    ready_s = np.where(local, result.first_token_s, result.pulled_s)
    pull_s = result.pulled_s - transfer_alone_s(result, cluster)
    router = np.zeros(len(result.status), np.int64)
    on_prefill, on_decode = result.prefill_worker + 1, result.decode_worker + 1
    for name, kind, process, start_s, end_s, of in (
        ("queue", 0, router, result.queued_s, result.sent_s, remote),
        ("prefill", 1, on_prefill, result.prefill_start_s, result.prefill_end_s, remote),
        ("prefill", 1, on_decode, result.prefill_start_s, result.first_token_s, local),
        ("transfer", 2, on_decode, pull_s, result.pulled_s, remote),
        ("decode", 3, on_decode, ready_s, result.finish_s, remote | local),
    ):
        rows = np.flatnonzero(of & (end_s > start_s))  # NaN compares as false
        rows = rows[np.argsort(start_s[rows], kind="stable")]
        yield _Spans(name, kind, process[rows], start_s[rows], end_s[rows], rows)


def _events(spans: _Spans, result: SimResult) -> Iterator[dict[str, Any]]:
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[float, int]]] = {}
    lanes: dict[int, int] = {}
    w = result.workload
    for process, start_s, end_s, row in zip(
        spans.process.tolist(),
        spans.start_s.tolist(),
        spans.end_s.tolist(),
        spans.row.tolist(),
        strict=True,
    ):
        running, idle = busy.setdefault(process, []), free.setdefault(process, [])
        while running and running[0][0] <= start_s:
            heapq.heappush(idle, heapq.heappop(running)[1])
        if not idle:
            lane = lanes[process] = lanes.get(process, -1) + 1
            heapq.heappush(idle, lane)
            thread = spans.kind * _LANES + lane
            yield _meta("thread_name", process, thread, {"name": f"{spans.name} {lane}"})
            yield _meta("thread_sort_index", process, thread, {"sort_index": thread})
        lane = heapq.heappop(idle)
        heapq.heappush(running, (end_s, lane))
        ts = round(start_s * 1e6, 3)
        yield {
            "name": spans.name,
            "cat": spans.name,
            "ph": "X",
            "pid": process,
            "tid": spans.kind * _LANES + lane,
            "ts": ts,
            # From rounded ends: what follows on the lane begins no earlier than this one ends.
            "dur": round(round(end_s * 1e6, 3) - ts, 3),
            "args": {
                "request": row,
                "session": int(w.session[row]),
                "prompt_tokens": int(w.prompt_tokens[row]),
                "output_tokens": int(w.output_tokens[row]),
                "reason": result.reasons[row],
            },
        }


def _meta(what: str, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "ts": 0, "args": args}
