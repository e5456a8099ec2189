# SPDX-License-Identifier: Apache-2.0
"""FIFO queues in front of the prefill workers, one a worker, with a bound on what is in flight.

Owns: who waits, who runs, how much predicted work a worker has. Every ticket is a lease: it is
released in a `finally` by whoever took it. Does not own: sending, deciding, the clock.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable

from controller.estimation.windows import MeanWindow
from controller.routing.inflight import InFlightBound


class WorkerGoneError(Exception):
    """The worker left while a prefill waited for it or ran on it."""


class Ticket:
    """One prefill's place at one worker."""

    __slots__ = ("enqueued_s", "granted", "predicted_s", "uncached_tokens", "worker_id")

    def __init__(
        self, worker_id: int, uncached_tokens: int, predicted_s: float, enqueued_s: float
    ) -> None:
        self.worker_id = worker_id
        self.uncached_tokens = uncached_tokens
        self.predicted_s = predicted_s
        self.enqueued_s = enqueued_s
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _WorkerQueue:
    def __init__(self, bound: InFlightBound, window_s: float) -> None:
        self.bound = bound
        self.waiting: deque[Ticket] = deque()
        self.running: dict[Ticket, None] = {}
        self.ttft = MeanWindow(window_s)
        self.busy_since_s = 0.0

    def in_flight_tokens(self) -> int:
        return sum(ticket.uncached_tokens for ticket in self.running)

    def pump(self, now_s: float) -> None:
        """Grant from the head while the bound allows."""
        while self.waiting:
            head = self.waiting[0]
            if head.granted.done():
                self.waiting.popleft()
                continue
            if not self.bound.admits(self.in_flight_tokens(), head.uncached_tokens):
                return
            self.run(self.waiting.popleft(), now_s)

    def run(self, ticket: Ticket, now_s: float) -> None:
        """Grant one."""
        if not self.running:
            self.busy_since_s = now_s
        self.running[ticket] = None
        ticket.granted.set_result(None)

    def predicted_s(self, now_s: float) -> float:
        """Predicted work: what runs, less the time it has run, and what waits."""
        running = sum(ticket.predicted_s for ticket in self.running)
        remaining = max(0.0, running - (now_s - self.busy_since_s)) if self.running else 0.0
        return remaining + sum(ticket.predicted_s for ticket in self.waiting)

    def oldest_age_s(self, now_s: float) -> float:
        """Age of the oldest prefill that waits or runs; 0 when there is none."""
        oldest = min(
            (ticket.enqueued_s for ticket in (*self.running, *self.waiting)), default=now_s
        )
        return max(0.0, now_s - oldest)

    def ttft_window_s(self, now_s: float) -> float:
        """Windowed TTFT; an empty window in front of a stuck queue is not slack.

        Nothing has finished for a whole window, so the age of the oldest prefill is the least
        that the next sample can be.
        """
        mean = self.ttft.mean(now_s)
        if math.isnan(mean) and (self.running or self.waiting):
            return self.oldest_age_s(now_s)
        return mean


class PrefillQueues:
    """The queues of all live prefill workers."""

    def __init__(self, bound: InFlightBound, window_s: float) -> None:
        self._bound = bound
        self._window_s = window_s
        self._queues: dict[int, _WorkerQueue] = {}

    def sync(self, live: Iterable[int]) -> None:
        """Follow the live set: forget the gone, wake those who waited for them."""
        alive = set(live)
        for worker_id in [w for w in self._queues if w not in alive]:
            queue = self._queues.pop(worker_id)
            for ticket in queue.waiting:
                if not ticket.granted.done():
                    ticket.granted.set_exception(WorkerGoneError(f"worker {worker_id:x} left"))
        for worker_id in alive.difference(self._queues):
            self._queues[worker_id] = _WorkerQueue(self._bound, self._window_s)

    def enqueue(
        self,
        worker_id: int,
        uncached_tokens: int,
        predicted_s: float,
        now_s: float,
        *,
        at_once: bool = False,
    ) -> Ticket:
        """Join a worker's queue; `ticket.granted` resolves when the prefill may be sent.

        `at_once` books it without waiting, whatever is in flight (shadow mode).
        """
        queue = self._queues.get(worker_id)
        if queue is None:
            raise WorkerGoneError(f"worker {worker_id:x} left")
        ticket = Ticket(worker_id, uncached_tokens, predicted_s, now_s)
        if at_once:
            queue.run(ticket, now_s)
        else:
            queue.waiting.append(ticket)
            queue.pump(now_s)
        return ticket

    def release(self, ticket: Ticket, now_s: float) -> None:
        """Give the place back, waiting or running. Releasing twice is harmless."""
        if not ticket.granted.done():
            ticket.granted.cancel()
        queue = self._queues.get(ticket.worker_id)
        if queue is None:
            return
        if queue.running.pop(ticket, 0) is None:
            queue.busy_since_s = now_s
        queue.pump(now_s)

    def record_ttft(self, worker_id: int, now_s: float, ttft_s: float) -> None:
        """A prefill finished after `ttft_s` (queue, prefill and predicted transfer)."""
        queue = self._queues.get(worker_id)
        if queue is not None:
            queue.ttft.add(now_s, ttft_s)

    def ttft_window_s(self, worker_id: int, now_s: float) -> float:
        """Windowed TTFT of a worker; NaN when empty."""
        return self._queues[worker_id].ttft_window_s(now_s)

    def predicted_s(self, worker_id: int, now_s: float) -> float:
        """Predicted time of everything that waits at or runs on a worker."""
        return self._queues[worker_id].predicted_s(now_s)

    def waiting(self) -> int:
        """Prefills held back at the router."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def in_flight(self) -> int:
        """Prefills sent and not finished."""
        return sum(len(queue.running) for queue in self._queues.values())

    def oldest_age_s(self, now_s: float) -> float:
        """Age of the oldest prefill anywhere."""
        return max((q.oldest_age_s(now_s) for q in self._queues.values()), default=0.0)
