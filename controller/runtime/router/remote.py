# SPDX-License-Identifier: Apache-2.0
"""A remote prefill: queue, send, wait, pass on, and give back what was reserved.

Owns: the deadlines of queue and prefill, what an answer must be, which workers are left alone after
a failure. Does not own: where a prefill goes and what happens after a failure (core.py), the
queues' order.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from controller.costs.model import TableCost
from controller.routing.estimates import prefill_due_s
from controller.routing.kernels.orderings import ALGORITHM_2
from controller.routing.units import siblings, worker_of
from controller.runtime.clock import Clock
from controller.runtime.router.breaker import Breaker
from controller.runtime.router.calls import PrefillCall
from controller.runtime.router.failures import is_break, is_request_fault
from controller.runtime.router.handover import forwarded_request, is_handover
from controller.runtime.router.leases import Pinned
from controller.runtime.router.leg import CoreSettings, Leg, PrefillFailedError
from controller.runtime.router.prefill_port import PrefillPort
from controller.runtime.router.queues import PrefillQueues
from controller.runtime.router.router_metrics import RouterMetrics
from controller.runtime.router.tickets import Again, Ticket, terms_of
from controller.types import ClusterView, Decision, Place


class RemotePrefills:
    """Runs remote prefills of one router. Single-threaded, on the event loop."""

    def __init__(
        self,
        costs: TableCost,
        settings: CoreSettings,
        port: PrefillPort,
        queues: PrefillQueues,
        pinned: Pinned,
        clock: Clock,
        metrics: RouterMetrics,
    ) -> None:
        self._costs = costs
        self._settings = settings
        self._port = port
        self._queues = queues
        self._pinned = pinned
        self._clock = clock
        self._metrics = metrics
        self._breaker = Breaker()
        queues.trusts = lambda unit_id: self._breaker.trusts(unit_id, clock.wall_now())
        self._calls: set[asyncio.Task[None]] = set()

    def usable(self, units: Iterable[int]) -> tuple[int, ...]:
        """Those that are not being left alone after a failure."""
        return self._breaker.usable(units, self._clock.wall_now())

    async def run(
        self,
        leg: Leg,
        view: ClusterView,
        cached: Mapping[int, int],
        again: Callable[[], tuple[Decision, ClusterView]],
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of the prefill that the record's decision places.

        `again` asks the rule once more, should the prefill wait in doubt (`batch`);
        GoesLocalError: it wants to be local.
        TimeoutError when it is not answered in time and the worker is not to blame. Left before
        its end, for whatever reason, the call releases what the worker hands over.
        """
        record = leg.record
        queued_s = self._clock.now()
        if queued_s >= leg.answer_by_s:
            raise asyncio.TimeoutError
        ticket = self._enqueue(leg, view, cached, queued_s, again)
        call: PrefillCall | None = None
        try:
            if ticket.granted.done():  # most of them: a task less
                ticket.granted.result()
            else:
                record.seal(self._costs)
                wait_s = min(self._settings.max_wait_s, leg.answer_by_s - queued_s)
                await asyncio.wait_for(ticket.granted, self._clock.wall(wait_s))
            sent_s = self._granted(leg, ticket, queued_s)
            call = self._send(ticket.worker_id, leg.request, leg.context)
            record.seal(self._costs)
            answered = self._chunks(call, ticket.worker_id, leg.answer_by_s)
            async with contextlib.aclosing(answered) as chunks:
                async for chunk in chunks:
                    self._finished(ticket, leg, sent_s)
                    yield chunk
        except PrefillFailedError:
            self._queues.release(ticket, self._clock.now(), failed=True)
            raise
        finally:
            self._leave(call, ticket)

    def _enqueue(
        self,
        leg: Leg,
        view: ClusterView,
        cached: Mapping[int, int],
        now_s: float,
        again: Callable[[], tuple[Decision, ClusterView]],
    ) -> Ticket:
        task, decision = leg.task, leg.record.decision
        assert decision is not None and decision.worker_id is not None
        terms = terms_of(self._costs, task.prompt_tokens, cached)
        ordering, slo = self._queues.ordering, leg.record.slo
        due_s = prefill_due_s(self._costs, task, view, ordering, slo)

        def wants() -> Again | None:
            chosen, now = again()
            if chosen.place is Place.LOCAL or chosen.worker_id is None:
                return None
            # Algorithm 2's limit runs from the first enqueue.
            kept = ordering.kind == ALGORITHM_2
            until_s = due_s if kept else prefill_due_s(self._costs, task, now, ordering, slo)
            return Again(chosen.worker_id, *terms(chosen.worker_id), until_s)

        uncached, predicted_s = terms(decision.worker_id)
        return self._queues.enqueue(
            decision.worker_id,
            uncached,
            predicted_s,
            now_s,
            arrival_s=task.arrival_s,
            due_s=due_s,
            urgency=task.urgency,
            jump_s=task.jump_s,
            at_once=leg.record.would is not None,
            prompt_tokens=task.prompt_tokens,
            tenant=leg.record.tenant,
            cached=cached,
            # What has failed once stays where it was put: it might be drawn to the same worker.
            terms=terms if leg.record.reroutes == 0 else None,
            only=leg.only,
            again=wants,
        )

    def _granted(self, leg: Leg, ticket: Ticket, queued_s: float) -> float:
        """Note when, and where it goes; returns now."""
        record, now_s = leg.record, self._clock.now()
        record.queue_ms = (now_s - queued_s) * 1e3
        record.predicted_ms = ticket.predicted_s * 1e3
        record.cached_tokens = leg.task.prompt_tokens - ticket.uncached_tokens
        self._metrics.waited(leg.task.prompt_tokens, now_s - queued_s, now_s)
        if record.decision is not None and ticket.worker_id != record.decision.worker_id:
            record.moved += ticket.moved
            record.decision = replace(record.decision, worker_id=ticket.worker_id)
        return now_s

    def _send(self, unit_id: int, request: dict[str, Any], context: Any) -> PrefillCall:
        rank = self._port.rank(unit_id)
        forwarded = forwarded_request(request, worker_of(unit_id), rank)
        stream = self._port.open(worker_of(unit_id), forwarded, context)
        call = PrefillCall(stream, lambda chunk: self._port.release(request, chunk))
        self._calls.add(call.task)
        call.task.add_done_callback(self._calls.discard)
        return call

    def _leave(self, call: PrefillCall | None, ticket: Ticket) -> None:
        """Give the place back; a prefill that is left to itself keeps it until it has ended."""
        if call is not None:
            call.abandon(self._clock.wall(self._settings.prefill_timeout_s))
            if not call.task.done():
                self._calls.add(call.task)
            if call.runs_on:
                call.task.add_done_callback(
                    lambda task: self._queues.release(ticket, self._clock.now())
                )
                return
        self._queues.release(ticket, self._clock.now())

    async def _chunks(
        self, call: PrefillCall, unit_id: int, answer_by_s: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The worker's chunks; anything but a usable hand-over first is a PrefillFailedError."""
        first = True
        while (chunk := await self._next(call, unit_id, answer_by_s)) is not None:
            answer_by_s = math.inf  # it is the first chunk that is waited for
            if first and not is_handover(chunk):
                # It answered, so it is alive: bad input or a refusal opens no breaker.
                raise PrefillFailedError(f"worker {unit_id:x}: answer has no hand-over")
            first = False
            self._breaker.succeeded(unit_id)
            yield chunk
        if first:
            raise self._failure(unit_id, "ended without an answer")

    async def _next(
        self, call: PrefillCall, unit_id: int, answer_by_s: float
    ) -> dict[str, Any] | None:
        patience_s = self._settings.prefill_timeout_s
        left_s = answer_by_s - self._clock.now()
        try:
            return await call.next(self._clock.wall(min(patience_s, left_s)))
        except asyncio.TimeoutError:
            if left_s < patience_s:
                raise  # it was not given its time: it may be well, and may finish
            call.abandon()
            raise self._failure(unit_id, f"silent for {patience_s:g} s") from None
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            if is_request_fault(error):  # as an answer without a hand-over: opens no breaker
                raise PrefillFailedError(f"worker {unit_id:x}: {what}") from error
            raise self._failure(unit_id, what, gone=is_break(error)) from error

    def _failure(self, unit_id: int, what: str, gone: bool = False) -> PrefillFailedError:
        now_s = self._clock.wall_now()
        for each in siblings(unit_id, self._port.live()) or [unit_id]:
            self._breaker.failed(each, now_s)
        return PrefillFailedError(f"worker {unit_id:x}: {what}", gone)

    def _finished(self, ticket: Ticket, leg: Leg, sent_s: float) -> None:
        """First chunk: the prefill is done, its place is free, its TTFT is known."""
        task, record = leg.task, leg.record
        if record.prefill_ms is not None:
            return
        now_s = self._clock.now()
        record.prefill_ms = (now_s - sent_s) * 1e3
        transfer_s = self._costs.kv_transfer_s(task.increment_tokens)
        ttft_s = now_s - task.arrival_s + transfer_s
        self._queues.record_ttft(ticket.worker_id, now_s, ttft_s)
        self._queues.release(ticket, now_s)
        pinned_s = self._settings.handover_s
        until_s = now_s + (transfer_s if pinned_s is None else pinned_s)
        self._pinned.pin(task.request_id, ticket.worker_id, task.prompt_tokens, until_s)
        if record.predicted_ttft_s is not None and record.reroutes == 0:
            self._metrics.mispredicted("prefill_end", ttft_s - record.predicted_ttft_s)
