# SPDX-License-Identifier: Apache-2.0
"""What the router knows about decode workers: windows from their ForwardPassMetrics.

Pure but for its memory: time comes in as an argument. A worker that has not reported for
`stale_s` has an unknown ITL (NaN), not a good one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from controller.estimation.windows import MeanWindow
from controller.types import DecodePool


@dataclass(frozen=True, slots=True)
class PassReport:
    """One forward pass as a worker reported it; seconds and tokens."""

    worker_id: int
    wall_time_s: float
    decode_requests: int
    decode_kv_tokens: int


class _Worker:
    def __init__(self, window_s: float) -> None:
        self.itl = MeanWindow(window_s)
        self.batch = 0
        self.context_tokens = 0
        self.busy_until_s = -math.inf


class DecodeState:
    """All decode workers; `local_sent` books prefills that were just placed there."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._workers: dict[int, _Worker] = {}

    def sync(self, live: Iterable[int]) -> None:
        """Follow the live set; reports of removed workers are forgotten."""
        alive = set(live)
        for worker_id in [w for w in self._workers if w not in alive]:
            del self._workers[worker_id]
        for worker_id in alive.difference(self._workers):
            self._workers[worker_id] = _Worker(self._window_s)

    def observe(self, report: PassReport, now_s: float) -> None:
        """Take in one forward pass. Its time is every running sequence's token gap."""
        worker = self._workers.get(report.worker_id)
        if worker is None:
            return
        worker.batch = report.decode_requests
        worker.context_tokens = report.decode_kv_tokens
        if report.wall_time_s > 0:
            worker.itl.add(now_s, report.wall_time_s, report.decode_requests)

    def local_sent(self, worker_id: int, predicted_s: float, now_s: float) -> None:
        """A prefill of `predicted_s` was placed on this worker; it works it off in turn."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.busy_until_s = max(worker.busy_until_s, now_s) + predicted_s

    def view(self, now_s: float) -> DecodePool:
        """The pool at this instant."""
        ids = tuple(self._workers)
        workers = [self._workers[i] for i in ids]
        return DecodePool(
            worker_ids=ids,
            itl_window_s=np.array([w.itl.mean(now_s) for w in workers], dtype=np.float64),
            queue_s=np.array([max(0.0, w.busy_until_s - now_s) for w in workers], dtype=np.float64),
            batch=np.array([w.batch for w in workers], dtype=np.int64),
            context_tokens=np.array([w.context_tokens for w in workers], dtype=np.int64),
        )


def expected_binding(pool: DecodePool) -> int | None:
    """The decode worker that the stock frontend will most likely choose after the prefill.

    A broker answers before the frontend binds the stream. The frontend's decode routing counts
    active KV blocks only, so the worker with the least decode context, queued local prefills
    counted, is the best guess; None when no decode worker is known.
    """
    if not pool.worker_ids:
        return None
    order = np.lexsort((pool.context_tokens, pool.queue_s))
    return int(order[0])
