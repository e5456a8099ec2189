# SPDX-License-Identifier: Apache-2.0
"""The queues in front of the prefill workers, one a (worker, rank), bounded in what is in flight.

Owns: whose prefill may be sent, who is told that, how slow a worker has been lately. Every ticket
is a lease: whoever took it releases it in a `finally`, and what has outlived every limit is swept.
Does not own: who goes first (controller.routing.waiting with the rule in force), what moves to
another worker while it waits (late_binding.py, revision.py), sending, placing, the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from controller.routing.inflight import InFlightBound
from controller.routing.kernels.orderings import FIFO, Ordering
from controller.routing.waiting import WaitingPrefills
from controller.runtime.router.late_binding import draw
from controller.runtime.router.pool_view import pool_view, unmirror
from controller.runtime.router.revision import revise
from controller.runtime.router.tickets import (
    Again,
    Alone,
    Lane,
    QueueOwners,
    Terms,
    Ticket,
    TooLateError,
    Wish,
    WorkerGoneError,
)
from controller.types import IntArray, PrefillPool

logger = logging.getLogger(__name__)

__all__ = ["PrefillQueues", "QueueOptions", "Ticket", "TooLateError", "WorkerGoneError"]


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What of the queues an operator may switch."""

    reject: bool = False
    """Refuse what cannot be in time any more (TooLateError). Only orderings that put such work
    aside can tell."""
    late_binding: bool = True
    """A worker that has become free takes over what waits longest elsewhere."""
    revise: bool = False
    """What waits and is not expected in time chooses again (placement `batch`)."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Shares of tenants in first-come queues; empty: nobody is told apart."""


class PrefillQueues:
    """The queues of all live prefill workers."""

    def __init__(
        self,
        bound: InFlightBound,
        window_s: float,
        ordering: Ordering = Ordering(FIFO),  # noqa: B008 a tuple
        options: QueueOptions = QueueOptions(),
        block_size: int = 64,
    ) -> None:
        self._bound = bound
        self._window_s = window_s
        self._options = options
        self._waiting = WaitingPrefills(ordering)
        self._lanes: dict[int, Lane] = {}
        self._by_row: dict[int, Lane] = {}
        self._live: tuple[int, ...] = ()
        self._lane_rows: IntArray = np.zeros(0, np.int64)
        self._pool_ids: tuple[int, ...] | None = None  # None: not since the live set changed
        self._pool_at: dict[int, int] = {}
        self._pool_rows: IntArray = np.zeros(0, np.int64)
        self._owners: QueueOwners = Alone()
        self.trusts: Callable[[int], bool] = lambda worker_id: True
        """Whether a worker is well: one that fails has room all the time, and must draw nothing."""
        self.block_size = block_size
        self.compile()

    @property
    def ordering(self) -> Ordering:
        """The rule in force."""
        return self._waiting.rule

    def compile(self) -> None:
        """Load or compile what a request will need, so that none waits for it."""
        lane, other, now_s = self._waiting.open_lane(), self._waiting.open_lane(), 0.0
        row = self._waiting.new_task(now_s, 1)
        self._waiting.join(lane, row, 1.0, 1.0, now_s)
        rows = np.array([lane])
        self._waiting.pool(rows, now_s)
        self._waiting.set_window(lane, 0.0, now_s)
        self._waiting.oldest_age_s(now_s)
        self._waiting.forecasts(rows, np.ones(1), 1.0, now_s, 0.2)
        self._waiting.fullest(rows, other, now_s)
        self._waiting.set_due(row, 1.0)
        self._waiting.ask_next(other, now_s)
        self._waiting.move(other, row, 1, 1.0, now_s)
        self._waiting.state(other, now_s)
        _, ordered = self._waiting.look(other, now_s, 1)
        self._waiting.send(row, ordered, now_s)
        self._waiting.forget(row, now_s)
        row = self._waiting.new_task(now_s, 1)
        self._waiting.fly(lane, row, 1.0, now_s)
        self._waiting.forget(row, now_s)
        self._waiting.close_lane(lane)
        self._waiting.close_lane(other)

    def sync(self, live: Iterable[int], now_s: float = 0.0) -> None:
        """Follow the live set: forget the gone, wake those who waited for them."""
        now = tuple(live)
        if now == self._live:
            return
        self._live, alive = now, set(now)
        self._pool_ids = None
        for worker_id in [w for w in self._lanes if w not in alive]:
            self._close(worker_id, now_s)
        new = [w for w in now if w not in self._lanes]
        for worker_id in new:
            number, weights = self._waiting.open_lane(), self._options.weights
            lane = Lane(worker_id, number, self._window_s, self._bound.tokens, weights)
            lane.owner = self._owners.owner_of(worker_id)
            self._lanes[worker_id] = self._by_row[number] = lane
        self._note_ours()
        for worker_id in new:
            self._draw(worker_id, now_s)

    def _note_ours(self) -> None:
        ours = [lane.number for lane in self._lanes.values() if lane.owner is None]
        self._lane_rows = np.array(ours, np.int64)

    def _close(self, worker_id: int, now_s: float) -> None:
        lane = self._lanes.pop(worker_id)
        for ticket in lane.tickets.values():
            self._owners.done(ticket)
            self._waiting.forget(ticket.row, now_s)
            if not ticket.granted.done():
                ticket.granted.set_exception(WorkerGoneError(f"worker {worker_id:x} left"))
        unmirror(self._waiting, lane, now_s)
        del self._by_row[lane.number]
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
        prompt_tokens: int = 0,
        tenant: str | None = None,
        cached: Mapping[int, int] | None = None,
        terms: Terms | None = None,
        only: frozenset[int] | None = None,
        again: Callable[[], Again | None] | None = None,
        asked_by: str | None = None,
    ) -> Ticket:
        """Join a worker's queue; `ticket.granted` resolves when the prefill may be sent.

        It may then be another worker: see `ticket.worker_id`; `terms` says what it would be there,
        `only` who can serve it. `due_s` is the latest end of its prefill for a first token in time.
        `at_once` books it without waiting, whatever is in flight (shadow mode). WorkerGoneError:
        no such worker.
        """
        lane = self._lanes.get(worker_id)
        if lane is None:
            raise WorkerGoneError(f"worker {worker_id:x} left")
        came_s = now_s if arrival_s is None else arrival_s
        row = self._waiting.new_task(came_s, uncached_tokens, urgency)
        told = due_s, urgency, jump_s, prompt_tokens, tenant, cached, terms, only, again, asked_by
        place = worker_id, row, now_s, uncached_tokens, predicted_s
        ticket = lane.tickets[row] = Ticket(*place, Wish(came_s, *told))
        if at_once:
            self._waiting.fly(lane.number, row, predicted_s, now_s)
            ticket.granted.set_result(None)
            return ticket
        if lane.shares is not None:
            ticket.tag_s = lane.shares.tag_s(tenant, predicted_s)
            jump_s += now_s - ticket.tag_s
        self._waiting.join(lane.number, row, predicted_s, due_s, now_s, jump_s)
        if lane.owner is None:
            self._pump(lane, now_s)
            self._revise(now_s)
        else:
            self._owners.ask(lane.owner, ticket, now_s)
        return ticket

    def _revise(self, now_s: float) -> None:
        if self._options.revise:
            revise(self._waiting, self._lanes, now_s, self._pump, self._forget)

    def _pump(self, lane: Lane, now_s: float) -> None:
        """Grant what the rule puts first while the bound allows."""
        while lane.owner is None:
            row, ordered = self._waiting.look(lane.number, now_s, lane.bound_tokens)
            if row < 0:
                return
            ticket = lane.tickets.get(row)
            if ticket is None:  # what another replica held here when the queue became ours
                unmirror(self._waiting, lane, now_s)
                continue
            if ticket.granted.done():  # nobody waits for it any more
                self._forget(lane, ticket, now_s)
                continue
            self._waiting.send(row, ordered, now_s)
            if lane.shares is not None and ticket.tag_s is not None:
                lane.shares.served(ticket.tag_s)
            ticket.granted.set_result(None)
            if self._options.reject:
                self._reject_late(lane, now_s)

    def _reject_late(self, lane: Lane, now_s: float) -> None:
        while (row := self._waiting.late_head(lane.number)) >= 0:
            ticket = lane.tickets[row]
            self._forget(lane, ticket, now_s)
            if not ticket.granted.done():
                ticket.granted.set_exception(TooLateError())

    def _draw(self, worker_id: int, now_s: float) -> None:
        """Late binding, as long as there is something for this worker to take over."""
        lane = self._lanes.get(worker_id)
        if lane is None or lane.owner is not None or not self._options.late_binding:
            return
        while (
            self._lane_rows.size > 1
            and self.trusts(worker_id)
            and draw(self._waiting, lane, self._lane_rows, self._by_row, now_s, self._forget)
        ):
            self._pump(lane, now_s)

    def _forget(self, lane: Lane, ticket: Ticket, now_s: float, failed: bool = False) -> None:
        if lane.tickets.pop(ticket.row, None) is ticket:
            ticket.failed = failed
            self._waiting.forget(ticket.row, now_s)
            if not lane.tickets and lane.shares is not None:
                lane.shares.emptied()
            self._owners.done(ticket)

    def release(self, ticket: Ticket, now_s: float, failed: bool = False) -> None:
        """Give the place back, waiting or running. Releasing twice is harmless.

        `failed`: its worker did not do it, so it shall take nothing over from others now.
        """
        if not ticket.granted.done():
            ticket.granted.cancel()
        lane = self._lanes.get(ticket.worker_id)
        if lane is None or lane.tickets.get(ticket.row) is not ticket:
            return
        self._forget(lane, ticket, now_s, failed)
        self._pump(lane, now_s)
        self._revise(now_s)
        if not failed:
            self._draw(ticket.worker_id, now_s)

    def sweep(self, now_s: float, longest_s: float) -> int:
        """Release what has been here for longer than any request may; returns how many.

        Every ticket has an owner that releases it: what is found here is a leak, and is said.
        """
        old = [t for t in self._tickets() if now_s - t.joined_s > longest_s]
        for ticket in old:
            logger.error(
                "router.lease_swept worker=%x age_s=%.1f granted=%s",
                ticket.worker_id,
                now_s - ticket.joined_s,
                ticket.granted.done(),
            )
            self.release(ticket, now_s)
        return len(old)

    def _tickets(self) -> Iterator[Ticket]:
        return (ticket for lane in self._lanes.values() for ticket in lane.tickets.values())

    def waits_now(self) -> list[tuple[int, float]]:
        """(prompt tokens, since when) of each prefill held back."""
        return [
            (t.wish.prompt_tokens, t.joined_s)
            for t in self._tickets()
            if t.wish.asked_by is None and not t.granted.done()
        ]

    def serves(self, unit_id: int) -> bool:
        """Whether there is a queue for this worker."""
        return unit_id in self._lanes

    def stepped(
        self, worker_id: int, step_tokens: int, engine_waiting_tokens: int, now_s: float
    ) -> None:
        """A worker's engine has computed a step: was it full, and does more wait there?"""
        lane = self._lanes.get(worker_id)
        if lane is None:
            return
        held = int(self._waiting.lanes[lane.number]["wait_tokens"])
        bound = self._bound.adapted(lane.bound_tokens, step_tokens, engine_waiting_tokens, held)
        if bound != lane.bound_tokens:
            lane.bound_tokens = bound
            self._pump(lane, now_s)

    def record_ttft(self, worker_id: int, now_s: float, ttft_s: float) -> None:
        """A prefill finished after `ttft_s` (queue, prefill and predicted transfer)."""
        lane = self._lanes.get(worker_id)
        if lane is not None:
            lane.ttft.add(now_s, ttft_s)
            self._read_window(lane, now_s)

    def _read_window(self, lane: Lane, now_s: float) -> None:
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
        columns = work_s, tokens, ttft_s
        budget = self._bound.max_num_batched_tokens
        return pool_view(self._waiting, ids, rows, columns, hits, budget, self.block_size, now_s)

    def ttft_window_s(self, worker_id: int, now_s: float) -> float:
        """Windowed TTFT of a worker; NaN when empty."""
        return float(self.view((worker_id,), {}, now_s).ttft_window_s[0])

    def predicted_s(self, worker_id: int, now_s: float) -> float:
        """Predicted time of everything that waits at or runs on a worker."""
        return float(self.view((worker_id,), {}, now_s).queue_s[0])

    def waiting(self) -> int:
        """Prefills of ours that are held back."""
        return sum(not t.granted.done() for t in self._tickets() if t.wish.asked_by is None)

    def in_flight(self) -> int:
        """Prefills of ours that were sent and have not finished."""
        return sum(t.granted.done() for t in self._tickets() if t.wish.asked_by is None)

    def oldest_age_s(self, now_s: float) -> float:
        """Age of the oldest prefill anywhere."""
        return self._waiting.oldest_age_s(now_s)
