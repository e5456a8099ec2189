# SPDX-License-Identifier: Apache-2.0
"""What the router knows about decode workers: windows from their ForwardPassMetrics, its own books.

Owns: batch, context and ITL as reported, local prefills and streams as booked here, what each
engine can do. Does not own: discovery, model cards (ports.py), the clock: time is an argument. A
worker that has not reported within the window has an unknown ITL (NaN), not a good one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from controller.estimation.windows import MeanWindow
from controller.routing.columns import snapshot
from controller.routing.kernels.binding import roomiest
from controller.routing.replica_state import DecodeBooks
from controller.types import DecodePool, FloatArray, IntArray

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class PassReport:
    """One forward pass as a worker reported it; seconds and tokens."""

    worker_id: int
    wall_time_s: float
    decode_requests: int
    decode_kv_tokens: int


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a decode worker's model card says of its engine."""

    kv_tokens: int | None = None
    """KV tokens that it has room for; None: unknown."""
    budget_tokens: int | None = None
    """Tokens that one step may compute; None: unknown."""
    chunked: bool = False
    """Whether it follows a request's chunk schedule (stock vLLM does not)."""
    ranks: range = range(1)
    """Its data-parallel ranks."""


class _Worker:
    def __init__(self, window_s: float) -> None:
        self.itl = MeanWindow(window_s)
        self.local_ends_s: dict[str, float] = {}


class DecodeState:
    """All decode workers; `local_sent` books prefills that were just placed there.

    `followed`: somebody says `local_done` for each of them; otherwise one counts as done when its
    predicted time is over.
    """

    def __init__(self, window_s: float, budget_tokens: int = 2048, followed: bool = False) -> None:
        """`budget_tokens` holds for workers whose model card names none."""
        self._window_s = window_s
        self._budget_tokens = budget_tokens
        self._followed = followed
        self._ids: tuple[int, ...] = ()
        self._workers: dict[int, _Worker] = {}
        self._rows: dict[int, int] = {}
        self._facts: dict[int, EngineFacts] = {}
        self._local_at: dict[str, int] = {}
        self._others: dict[int, DecodeBooks] = {}
        self._others_at_s = 0.0
        self._unseen_s: dict[int, float] = {}
        self._replicas = 1
        self._held_by: dict[int, int] = {}  # also of workers that discovery has not shown yet
        self._size(0)
        # Compiled here, not at a request.
        roomiest(np.zeros(1), np.zeros(1, np.int64))
        snapshot(self._times_s, self._counts, 0.0)

    def _size(self, count: int) -> None:
        # Two blocks, rows as in columns.py.
        self._times_s = np.full((3, count), math.nan)
        self._itl_s, self._itl_until_s, self._busy_until_s = self._times_s
        self._itl_until_s[:], self._busy_until_s[:] = math.inf, -math.inf
        self._counts = np.zeros((4, count), np.int64)
        self._locals, self._batch, self._context, self._held = self._counts
        self._kv = np.full(count, _NO_LIMIT, np.int64)
        self._budget = np.full(count, self._budget_tokens, np.int64)
        self._chunked = np.zeros(count, np.bool_)

    def sync(self, live: Iterable[int]) -> None:
        """Follow the live set; what is known of removed workers is forgotten."""
        ids = tuple(live)
        if ids == self._ids:
            return
        kept = [w for w in ids if w in self._rows]
        there = [self._rows[w] for w in kept]
        times_s, counts = self._times_s[:, there], self._counts[:, there]
        self._ids, self._rows = ids, {w: i for i, w in enumerate(ids)}
        self._workers = {w: self._workers.get(w) or _Worker(self._window_s) for w in ids}
        self._size(len(ids))
        here = [self._rows[w] for w in kept]
        self._times_s[:, here], self._counts[:, here] = times_s, counts
        for worker_id, row in self._rows.items():
            self._held[row] = self._held_by.get(worker_id, 0)
        self._facts = {w: facts for w, facts in self._facts.items() if w in self._rows}
        for worker_id, facts in self._facts.items():
            self._apply(worker_id, facts)

    def unknown(self) -> list[int]:
        """Workers that `equip` has said nothing of."""
        return [w for w in self._ids if w not in self._facts]

    def equip(self, worker_id: int, facts: EngineFacts) -> None:
        """What a worker's engine can do."""
        if worker_id in self._rows:
            self._facts[worker_id] = facts
            self._apply(worker_id, facts)

    def _apply(self, worker_id: int, facts: EngineFacts) -> None:
        row = self._rows[worker_id]
        self._kv[row] = facts.kv_tokens or _NO_LIMIT
        self._budget[row] = facts.budget_tokens or self._budget_tokens
        self._chunked[row] = facts.chunked

    def observe(self, report: PassReport, now_s: float) -> None:
        """Take in one forward pass. Its time is every running sequence's token gap."""
        row = self._rows.get(report.worker_id)
        if row is None:
            return
        self._batch[row] = report.decode_requests
        self._context[row] = report.decode_kv_tokens
        if report.wall_time_s > 0:
            window = self._workers[report.worker_id].itl
            window.add(now_s, report.wall_time_s, report.decode_requests)
            self._read_window(row, window, now_s)

    def _read_window(self, row: int, window: MeanWindow, now_s: float) -> None:
        self._itl_s[row], self._itl_until_s[row] = window.mean(now_s), window.until_s()

    def hold(self, worker_id: int, tokens: int) -> None:
        """A stream bound to this worker holds so many more KV tokens (negative: fewer)."""
        held = self._held_by[worker_id] = self._held_by.get(worker_id, 0) + tokens
        if not held:
            del self._held_by[worker_id]
        row = self._rows.get(worker_id)
        if row is not None:
            self._held[row] = held

    def local_sent(self, worker_id: int, request_id: str, predicted_s: float, now_s: float) -> None:
        """A prefill of `predicted_s` was placed on this worker; it works it off in turn."""
        row = self._rows.get(worker_id)
        if row is None:
            return
        end_s = max(float(self._busy_until_s[row]), now_s) + predicted_s
        self._busy_until_s[row] = end_s
        self._workers[worker_id].local_ends_s[request_id] = end_s
        if self._replicas > 1:
            unseen_s = self._unseen_s.get(worker_id, 0.0)
            self._unseen_s[worker_id] = unseen_s + (self._replicas - 1) * predicted_s
        if self._followed:
            self._local_at[request_id] = worker_id
        self._locals[row] = len(self._workers[worker_id].local_ends_s)

    def local_done(self, request_id: str) -> None:
        """A local prefill has given its first token, or has gone; any other id is no matter."""
        worker_id = self._local_at.pop(request_id, None)
        if worker_id is None:
            return
        worker = self._workers.get(worker_id)
        if worker is not None and worker.local_ends_s.pop(request_id, None) is not None:
            self._locals[self._rows[worker_id]] = len(worker.local_ends_s)

    def tell(self, now_s: float) -> tuple[DecodeBooks, ...]:
        """What this router has placed on each worker, for its replicas."""
        if not self._followed:
            self._drop_ended(now_s)
        told = []
        for worker_id, row in self._rows.items():
            left_s = max(0.0, float(self._busy_until_s[row]) - now_s)
            held = self._held_by.get(worker_id, 0)
            if left_s or held:
                told.append(DecodeBooks(worker_id, left_s, int(self._locals[row]), held))
        return tuple(told)

    def hear(self, books: Mapping[int, DecodeBooks], now_s: float) -> None:
        """What all other replicas together have placed; takes the place of what was heard."""
        self._others = dict(books)
        self._others_at_s = now_s
        self._unseen_s.clear()

    def among(self, replicas: int) -> None:
        """So many routers decide like this one: until they tell, each most likely did as we did."""
        self._replicas = replicas

    def _drop_ended(self, now_s: float) -> None:
        for row in np.flatnonzero(self._locals):
            worker = self._workers[self._ids[row]]
            ends_s = worker.local_ends_s
            worker.local_ends_s = {each: s for each, s in ends_s.items() if s > now_s}
            self._locals[row] = len(worker.local_ends_s)

    def view(self, now_s: float, cached: Mapping[int, int] | None = None) -> DecodePool:
        """The pool at this instant; `cached` are a prompt's tokens that workers hold, by id."""
        if not self._followed:
            self._drop_ended(now_s)
        times_s, counts, stale = snapshot(self._times_s, self._counts, now_s)
        if stale:
            for row in np.flatnonzero(self._itl_until_s <= now_s):
                self._read_window(int(row), self._workers[self._ids[row]].itl, now_s)
            times_s, counts, _ = snapshot(self._times_s, self._counts, now_s)
        hits = np.zeros(len(self._ids), np.int64)
        for worker_id, tokens in (cached or {}).items():
            if worker_id in self._rows:
                hits[self._rows[worker_id]] = tokens
        local_prefills, batch, context, held = counts
        if self._others or self._unseen_s:
            self._add_others(times_s[1], local_prefills, held, now_s)
        return DecodePool(
            worker_ids=self._ids,
            itl_window_s=times_s[0],
            queue_s=times_s[1],
            local_prefills=local_prefills,
            batch=batch,
            context_tokens=context,
            held_tokens=held,
            kv_tokens=self._kv,
            budget_tokens=self._budget,
            chunked=self._chunked,
            cached_tokens=hits,
        )

    def _add_others(
        self, queue_s: FloatArray, local_prefills: IntArray, held: IntArray, now_s: float
    ) -> None:
        """The other replicas' books on top of ours; what they hold may be in the reports too."""
        ago_s = now_s - self._others_at_s
        for worker_id, books in self._others.items():
            row = self._rows.get(worker_id)
            if row is not None:
                queue_s[row] += max(0.0, books.local_s - ago_s)
                local_prefills[row] += books.locals
                ours = self._held_by.get(worker_id, 0)
                held[row] = max(held[row], ours + books.held_tokens)
        for worker_id, unseen_s in self._unseen_s.items():
            row = self._rows.get(worker_id)
            if row is not None:
                queue_s[row] += unseen_s


def expected_binding(pool: DecodePool) -> int | None:
    """The decode worker that the stock frontend will most likely choose after the prefill.

    A broker answers before the frontend binds the stream. The frontend's decode routing counts
    active KV blocks only, so the worker with the least decode context, queued local prefills
    counted, is the best guess; None when no decode worker is known.
    """
    if not pool.worker_ids:
        return None
    return int(roomiest(pool.queue_s, pool.context_tokens))
