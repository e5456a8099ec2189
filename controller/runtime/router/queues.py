# SPDX-License-Identifier: Apache-2.0
"""The queues in front of the prefill workers, one a worker, with a bound on what is in flight.

Owns: whose prefill may be sent, who is told that, how slow a worker has been lately. Every ticket
is a lease: it is released in a `finally` by whoever took it. Does not own: who goes first
(controller.routing.waiting with the rule in force), sending, placing, the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from controller.estimation.windows import MeanWindow
from controller.routing.inflight import InFlightBound
from controller.routing.kernels.orderings import FIFO, Ordering
from controller.routing.waiting import WaitingPrefills
from controller.types import FloatArray, IntArray, PrefillPool, PrefillTask


class WorkerGoneError(Exception):
    """The worker left while a prefill waited for it or ran on it."""


class TooLateError(Exception):
    """Early rejection: the prefill cannot be in time any more."""


class Ticket:
    """One prefill's place at one worker."""

    __slots__ = ("granted", "row", "uncached_tokens", "worker_id")

    def __init__(self, worker_id: int, uncached_tokens: int, row: int) -> None:
        self.worker_id = worker_id
        self.uncached_tokens = uncached_tokens
        self.row = row
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Lane:
    """One worker's queue."""

    def __init__(self, number: int, window_s: float) -> None:
        self.number = number
        self.tickets: dict[int, Ticket] = {}  # by row: waiting and in flight
        self.ttft = MeanWindow(window_s)


class PrefillQueues:
    """The queues of all live prefill workers."""

    def __init__(
        self,
        bound: InFlightBound,
        window_s: float,
        ordering: Ordering = Ordering(FIFO),  # noqa: B008 a tuple
        reject: bool = False,
        block_size: int = 64,
    ) -> None:
        """`reject`: refuse what cannot be in time any more (TooLateError) instead of queueing it.

        Only orderings that put such work aside can tell.
        """
        self._bound = bound
        self._window_s = window_s
        self._reject = reject
        self._waiting = WaitingPrefills(ordering)
        self._lanes: dict[int, _Lane] = {}
        self._live: tuple[int, ...] = ()
        self._pool_ids: tuple[int, ...] | None = None  # None: not since the live set changed
        self._pool_at: dict[int, int] = {}
        self._pool_rows: IntArray = np.zeros(0, np.int64)
        self.block_size = block_size
        self.compile()

    @property
    def ordering(self) -> Ordering:
        """The rule in force."""
        return self._waiting.rule

    def compile(self) -> None:
        """Load or compile what a request will need, so that none waits for it."""
        lane, now_s = self._waiting.open_lane(), 0.0
        row = self._waiting.new_task(now_s, 1)
        self._waiting.join(lane, row, 1.0, 1.0, now_s)
        rows = np.array([lane])
        self._waiting.pool(rows, now_s)
        self._waiting.set_window(lane, 0.0, now_s)
        self._waiting.oldest_age_s(now_s)
        self._waiting.forecasts(rows, np.ones(1), 1.0, now_s, 0.2)
        _, ordered = self._waiting.look(lane, now_s, 1)
        self._waiting.send(row, ordered, now_s)
        self._waiting.forget(row, now_s)
        row = self._waiting.new_task(now_s, 1)
        self._waiting.fly(lane, row, 1.0, now_s)
        self._waiting.forget(row, now_s)
        self._waiting.close_lane(lane)

    def sync(self, live: Iterable[int]) -> None:
        """Follow the live set: forget the gone, wake those who waited for them."""
        now = tuple(live)
        if now == self._live:
            return
        self._live, alive = now, set(now)
        self._pool_ids = None
        for worker_id in [w for w in self._lanes if w not in alive]:
            self._close(worker_id)
        for worker_id in alive.difference(self._lanes):
            self._lanes[worker_id] = _Lane(self._waiting.open_lane(), self._window_s)

    def _close(self, worker_id: int) -> None:
        lane = self._lanes.pop(worker_id)
        for ticket in lane.tickets.values():
            self._waiting.forget(ticket.row, 0.0)
            if not ticket.granted.done():
                ticket.granted.set_exception(WorkerGoneError(f"worker {worker_id:x} left"))
        self._waiting.close_lane(lane.number)

    def enqueue(
        self,
        worker_id: int,
        uncached_tokens: int,
        predicted_s: float,
        now_s: float,
        *,
        arrival_s: float | None = None,
        due_s: float = np.inf,
        urgency: int = 0,
        jump_s: float = 0.0,
        at_once: bool = False,
    ) -> Ticket:
        """Join a worker's queue; `ticket.granted` resolves when the prefill may be sent.

        `due_s` is the latest end of its prefill for a first token in time. `at_once` books it
        without waiting, whatever is in flight (shadow mode). WorkerGoneError: no such worker.
        """
        lane = self._lanes.get(worker_id)
        if lane is None:
            raise WorkerGoneError(f"worker {worker_id:x} left")
        came_s = now_s if arrival_s is None else arrival_s
        row = self._waiting.new_task(came_s, uncached_tokens, urgency)
        ticket = lane.tickets[row] = Ticket(worker_id, uncached_tokens, row)
        if at_once:
            self._waiting.fly(lane.number, row, predicted_s, now_s)
            ticket.granted.set_result(None)
        else:
            self._waiting.join(lane.number, row, predicted_s, due_s, now_s, jump_s)
            self._pump(lane, now_s)
        return ticket

    def _pump(self, lane: _Lane, now_s: float) -> None:
        """Grant what the rule puts first while the bound allows."""
        while True:
            row, ordered = self._waiting.look(lane.number, now_s, self._bound.tokens)
            if row < 0:
                return
            ticket = lane.tickets[row]
            if ticket.granted.done():  # nobody waits for it any more
                self._forget(lane, ticket, now_s)
                continue
            self._waiting.send(row, ordered, now_s)
            ticket.granted.set_result(None)
            if self._reject:
                self._reject_late(lane, now_s)

    def _reject_late(self, lane: _Lane, now_s: float) -> None:
        while (row := self._waiting.late_head(lane.number)) >= 0:
            ticket = lane.tickets[row]
            self._forget(lane, ticket, now_s)
            if not ticket.granted.done():
                ticket.granted.set_exception(
                    TooLateError("its TTFT limit cannot be met any more (ordering.reject)")
                )

    def _forget(self, lane: _Lane, ticket: Ticket, now_s: float) -> None:
        if lane.tickets.pop(ticket.row, None) is ticket:
            self._waiting.forget(ticket.row, now_s)

    def release(self, ticket: Ticket, now_s: float) -> None:
        """Give the place back, waiting or running. Releasing twice is harmless."""
        if not ticket.granted.done():
            ticket.granted.cancel()
        lane = self._lanes.get(ticket.worker_id)
        if lane is None or lane.tickets.get(ticket.row) is not ticket:
            return
        self._forget(lane, ticket, now_s)
        self._pump(lane, now_s)

    def record_ttft(self, worker_id: int, now_s: float, ttft_s: float) -> None:
        """A prefill finished after `ttft_s` (queue, prefill and predicted transfer)."""
        lane = self._lanes.get(worker_id)
        if lane is not None:
            lane.ttft.add(now_s, ttft_s)
            self._read_window(lane, now_s)

    def _read_window(self, lane: _Lane, now_s: float) -> None:
        self._waiting.set_window(lane.number, lane.ttft.mean(now_s), lane.ttft.until_s())

    def view(self, ids: tuple[int, ...], cached: Mapping[int, int], now_s: float) -> PrefillPool:
        """The workers `ids`, all live, as a placement rule may look at them."""
        if ids != self._pool_ids:
            self._pool_ids, self._pool_at = ids, {w: k for k, w in enumerate(ids)}
            self._pool_rows = np.array([self._lanes[w].number for w in ids], np.int64)
        rows = self._pool_rows
        work_s, tokens, ttft_s, stale = self._waiting.pool(rows, now_s)
        if stale:
            for k in self._waiting.stale_windows(rows, now_s):
                self._read_window(self._lanes[ids[k]], now_s)
            _, _, ttft_s, _ = self._waiting.pool(rows, now_s)
        hits = np.zeros(len(ids), np.int64)
        for worker_id, count in cached.items():
            at = self._pool_at.get(worker_id)
            if at is not None:
                hits[at] = count

        def forecast(
            task: PrefillTask, predicted_s: FloatArray, due_s: float, cv: float
        ) -> tuple[FloatArray, FloatArray]:
            return self._waiting.forecasts(
                rows,
                predicted_s,
                due_s,
                now_s,
                cv,
                arrival_s=task.arrival_s,
                urgency=task.urgency,
                jump_s=task.jump_s,
            )

        return PrefillPool(
            worker_ids=ids,
            ttft_window_s=ttft_s,
            queue_s=work_s,
            tokens=tokens,
            cached_tokens=hits,
            forecast=forecast,
            budget_tokens=self._bound.max_num_batched_tokens,
            block_size=self.block_size,
        )

    def ttft_window_s(self, worker_id: int, now_s: float) -> float:
        """Windowed TTFT of a worker; NaN when empty."""
        return float(self.view((worker_id,), {}, now_s).ttft_window_s[0])

    def predicted_s(self, worker_id: int, now_s: float) -> float:
        """Predicted time of everything that waits at or runs on a worker."""
        return float(self.view((worker_id,), {}, now_s).queue_s[0])

    def waiting(self) -> int:
        """Prefills held back at the router."""
        lanes = self._open_lanes()
        return int(lanes["queued"].sum() + lanes["lates"].sum())

    def in_flight(self) -> int:
        """Prefills sent and not finished."""
        return int(self._open_lanes()["flying"].sum())

    def oldest_age_s(self, now_s: float) -> float:
        """Age of the oldest prefill anywhere."""
        return self._waiting.oldest_age_s(now_s)

    def _open_lanes(self) -> Any:
        return self._waiting.lanes[[lane.number for lane in self._lanes.values()]]
