# SPDX-License-Identifier: Apache-2.0
"""The router core: decides where each prefill runs, queues it, and forwards it.

Owns: the life of one request between arrival and its hand-over, with every way it can fail.
Does not own: how to talk to workers (`PrefillPort`), how it is attached to Dynamo (broker.py,
relay.py), the rules (controller.routing).

A request is never lost here: whatever goes wrong before a prefill worker has answered, it is
placed again once, and then answered "prefill locally", which every decode worker can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from controller.costs.model import TableCost
from controller.routing.estimates import prefill_due_s
from controller.routing.registry import Placement, decide
from controller.runtime.clock import Clock
from controller.runtime.router.breaker import Breaker
from controller.runtime.router.calls import PrefillCall
from controller.runtime.router.decode_state import DecodeState
from controller.runtime.router.describe import SessionHistories, describe, session_id
from controller.runtime.router.failures import is_request_fault, refused
from controller.runtime.router.handover import forwarded_request, is_handover, local_answer
from controller.runtime.router.hints import Objectives
from controller.runtime.router.prefill_port import PrefillPort
from controller.runtime.router.queues import (
    PrefillQueues,
    Ticket,
    TooLateError,
    WorkerGoneError,
)
from controller.runtime.router.records import (
    DecisionLog,
    RequestRecord,
    RouterMetrics,
    unix_now,
)
from controller.runtime.router.sight import DecodeSide, Sight
from controller.types import (
    ClusterView,
    Decision,
    DecisionReason,
    Place,
    PrefillTask,
)

logger = logging.getLogger(__name__)

_PLACEMENTS_A_REQUEST = 2


class PrefillFailedError(Exception):
    """A prefill worker answered without a usable hand-over, or not at all."""


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits of the core, emulated seconds. All placements of a request share their sum."""

    max_wait_s: float
    prefill_timeout_s: float
    sticky_sessions: bool
    """Whether a session returns to its decode worker (history counts there)."""


@dataclass(frozen=True, slots=True)
class _Leg:
    """One request's prefill leg, on its way through the core."""

    request: dict[str, Any]
    context: Any
    task: PrefillTask
    record: RequestRecord
    side: DecodeSide
    answer_by_s: float
    only: frozenset[int] | None


class RouterCore:
    """One model's router. Single-threaded: every method runs on the event loop."""

    def __init__(
        self,
        rule: Placement,
        costs: TableCost,
        objectives: Objectives,
        settings: CoreSettings,
        port: PrefillPort,
        queues: PrefillQueues,
        decode: DecodeState,
        clock: Clock,
        metrics: RouterMetrics,
        log: DecisionLog,
        shadow: Callable[[], bool] = lambda: False,
    ) -> None:
        self._rule = rule
        self._costs = costs
        self._objectives = objectives
        self._settings = settings
        self._port = port
        self._queues = queues
        self._decode = decode
        self._sight = Sight(queues, decode, costs)
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._shadow = shadow
        self._breaker = Breaker()
        self._calls: set[asyncio.Task[None]] = set()
        self._sessions = SessionHistories()

    async def prefill(
        self,
        request: dict[str, Any],
        request_id: str,
        context: Any,
        bound: int | None = None,
        migrations: int = 0,
        answer_by_s: float = math.inf,
        only: frozenset[int] | None = None,
        fresh: bool = False,
        held: Mapping[int, int] | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Serve the prefill leg of one request: yields what the frontend shall see.

        `bound` is the decode worker that will stream, when the attachment chooses it; None when
        the frontend will (then its likely choice is assumed). `migrations` says how often the
        attachment has moved this stream before. No hand-over by `answer_by_s` (by the core's
        clock): the prefill runs locally, as after `max_wait_s` and `prefill_timeout_s` together.
        `only` names the prefill workers that can serve it, None: all. `fresh`: nothing ties the
        request to `bound`, so that the answer may name another decode worker. `held`: tokens of
        its prompt whose KV decode workers have, by id. With early rejection it may raise what
        the frontend turns into HTTP 529.
        """
        arrival_s = self._clock.now()
        limits = self._settings
        answer_by_s = min(answer_by_s, arrival_s + limits.max_wait_s + limits.prefill_timeout_s)
        side = DecodeSide(bound, fresh, held or {})
        task = self._task(request, request_id, arrival_s, side)
        record = RequestRecord(
            request_id=request_id,
            session_id=task.session_id,
            arrived_unix_s=unix_now(),
            prompt_tokens=task.prompt_tokens,
            history_tokens=task.history_tokens,
            sequences=task.sequences,
            migrations=migrations,
        )
        leg = _Leg(request, context, task, record, side, answer_by_s, only)
        try:
            async with contextlib.aclosing(self._serve(leg)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._metrics.observe(record)
            self._log.write(record)

    async def _serve(self, leg: _Leg) -> AsyncGenerator[dict[str, Any], None]:
        task, record = leg.task, leg.record
        token_ids = leg.request.get("token_ids") or []
        failed: set[int] = set()
        for attempt in range(_PLACEMENTS_A_REQUEST):
            cached = await self._port.cached_tokens(token_ids)
            view = self._view(leg, cached, failed)
            record.decision = decision = decide(self._rule, task, view)
            watching = self._shadow() and view.prefill.worker_ids and task.sequences == 1
            if watching:
                record.would = decision
                record.decision = decision = await self._stock(token_ids, task, view)
            if decision.place is Place.LOCAL or decision.worker_id is None:
                break
            record.cached_tokens = cached.get(decision.worker_id, 0)
            try:
                remote = self._remote(leg, decision.worker_id, view)
                async with contextlib.aclosing(remote) as chunks:
                    async for chunk in chunks:
                        record.outcome = "handed_over"
                        yield chunk
                return
            except asyncio.TimeoutError:
                record.decision = _fallback(decision, DecisionReason.WAIT_LIMIT)
                break
            except TooLateError as error:
                record.outcome = "rejected"
                record.decision = replace(decision, reason=DecisionReason.REJECTED)
                raise refused(str(error)) from error
            except (PrefillFailedError, WorkerGoneError) as error:
                if record.outcome == "handed_over":
                    # The frontend has the hand-over already: a second answer would be a lie.
                    record.outcome = "failed"
                    raise
                logger.warning("router.prefill_failed request=%s error=%s", task.request_id, error)
                failed.add(decision.worker_id)
                record.reroutes = attempt + 1
                record.decision = _fallback(decision, DecisionReason.PREFILL_FAILED)
            finally:
                if watching:
                    await self._port.stock_done(task.request_id)
        record.outcome = "local"
        yield self._local(leg, record.decision or decision)

    async def _stock(self, token_ids: list[int], task: PrefillTask, view: ClusterView) -> Decision:
        """Shadow mode: what happens without us. Least work where Dynamo's router is not there."""
        worker_id = await self._port.stock_choice(token_ids, task.request_id)
        ids = view.prefill.worker_ids
        if worker_id not in ids:
            worker_id = ids[int(np.argmin(view.prefill.queue_s))]
        return Decision(Place.REMOTE, worker_id, DecisionReason.SHADOW_STOCK)

    async def _remote(
        self, leg: _Leg, worker_id: int, view: ClusterView
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Queue, send, and pass on the chunks of one remote prefill.

        TimeoutError when it is not answered in time and the worker is not to blame. Left before
        its end, for whatever reason, the call releases what the worker hands over.
        """
        task, record = leg.task, leg.record
        cached = min(record.cached_tokens or 0, task.prompt_tokens - 1)
        uncached = task.prompt_tokens - cached
        predicted_s = self._costs.prefill_s(cached, uncached)
        queued_s = self._clock.now()
        if queued_s >= leg.answer_by_s:
            raise asyncio.TimeoutError
        slo = task.slo or self._objectives.default
        ticket = self._queues.enqueue(
            worker_id,
            uncached,
            predicted_s,
            queued_s,
            arrival_s=task.arrival_s,
            due_s=prefill_due_s(self._costs, task, view, self._queues.ordering, slo),
            urgency=task.urgency,
            jump_s=task.jump_s,
            at_once=record.would is not None,
        )
        call: PrefillCall | None = None
        try:
            wait_s = min(self._settings.max_wait_s, leg.answer_by_s - queued_s)
            await asyncio.wait_for(ticket.granted, self._clock.wall(wait_s))
            sent_s = self._clock.now()
            record.queue_ms = (sent_s - queued_s) * 1e3
            record.predicted_ms = predicted_s * 1e3
            call = self._send(worker_id, leg.request, leg.context)
            answered = self._chunks(call, worker_id, leg.answer_by_s)
            async with contextlib.aclosing(answered) as chunks:
                async for chunk in chunks:
                    self._finished(ticket, task, record, sent_s)
                    yield chunk
        finally:
            self._leave(call, ticket)

    def _send(self, worker_id: int, request: dict[str, Any], context: Any) -> PrefillCall:
        stream = self._port.open(worker_id, forwarded_request(request, worker_id), context)
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
        self, call: PrefillCall, worker_id: int, answer_by_s: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The worker's chunks; anything but a usable hand-over first is a PrefillFailedError."""
        first = True
        while (chunk := await self._next(call, worker_id, answer_by_s)) is not None:
            answer_by_s = math.inf  # it is the first chunk that is waited for
            if first and not is_handover(chunk):
                # It answered, so it is alive: bad input or a refusal opens no breaker.
                raise PrefillFailedError(f"worker {worker_id:x}: answer has no hand-over")
            first = False
            self._breaker.succeeded(worker_id)
            yield chunk
        if first:
            raise self._failure(worker_id, "ended without an answer")

    async def _next(
        self, call: PrefillCall, worker_id: int, answer_by_s: float
    ) -> dict[str, Any] | None:
        patience_s = self._settings.prefill_timeout_s
        left_s = answer_by_s - self._clock.now()
        try:
            return await call.next(self._clock.wall(min(patience_s, left_s)))
        except asyncio.TimeoutError:
            if left_s < patience_s:
                raise  # it was not given its time: it may be well, and may finish
            call.abandon()
            raise self._failure(worker_id, f"silent for {patience_s:g} s") from None
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            if is_request_fault(error):  # as an answer without a hand-over: opens no breaker
                raise PrefillFailedError(f"worker {worker_id:x}: {what}") from error
            raise self._failure(worker_id, what) from error

    def _failure(self, worker_id: int, what: str) -> PrefillFailedError:
        self._breaker.failed(worker_id, self._clock.wall_now())
        return PrefillFailedError(f"worker {worker_id:x}: {what}")

    def _finished(
        self, ticket: Ticket, task: PrefillTask, record: RequestRecord, sent_s: float
    ) -> None:
        """First chunk: the prefill is done, its place is free, its TTFT is known."""
        if record.prefill_ms is not None:
            return
        now_s = self._clock.now()
        record.prefill_ms = (now_s - sent_s) * 1e3
        ttft_s = now_s - task.arrival_s + self._costs.kv_transfer_s(task.increment_tokens)
        self._queues.record_ttft(ticket.worker_id, now_s, ttft_s)
        self._queues.release(ticket, now_s)

    def _task(
        self, request: dict[str, Any], request_id: str, arrival_s: float, side: DecodeSide
    ) -> PrefillTask:
        bound, history = side.worker_id, 0
        if bound is not None:
            history = side.held.get(bound, 0)
        if self._settings.sticky_sessions:
            token_ids = request.get("token_ids") or []
            followed = self._sessions.follow(session_id(request), token_ids, bound)
            history = max(history, followed)
        return describe(request, request_id, arrival_s, history, self._objectives.of(request))

    def _view(self, leg: _Leg, cached: dict[int, int], failed: set[int]) -> ClusterView:
        live = self._port.live()
        self._queues.sync(live)
        ids = self._breaker.usable(live, self._clock.wall_now())
        if leg.only is not None or failed:
            ids = tuple(w for w in ids if w not in failed and (leg.only is None or w in leg.only))
        return self._sight.view(leg.task, leg.side, ids, cached, self._clock.now())

    def _local(self, leg: _Leg, decision: Decision) -> dict[str, Any]:
        """Book a local prefill; the answer that asks for it."""
        self._sight.book_local(leg.task, leg.side, decision, self._clock.now())
        return local_answer(decision.chunks, decision.decode_id)

    def local_done(self, request_id: str) -> None:
        """A decode worker has answered, or its leg has ended: a local prefill there is over."""
        self._decode.local_done(request_id)


def _fallback(decision: Decision, reason: DecisionReason) -> Decision:
    return Decision(Place.LOCAL, None, reason, decision.estimates_s)
