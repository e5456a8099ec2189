# SPDX-License-Identifier: Apache-2.0
"""The router core: decides where each prefill runs, and what happens when that fails.

Owns: the life of one request between arrival and its hand-over. Does not own: queueing and sending
(remote.py), how to talk to workers (`PrefillPort`), how it is attached to Dynamo (broker.py,
relay.py), the rules (controller.routing).

A request is never lost here: whatever goes wrong before a prefill worker has answered, it is
placed again once, and then answered "prefill locally", which every decode worker can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from controller.costs.model import TableCost
from controller.routing.registry import Placement, decide
from controller.routing.units import worker_of
from controller.runtime.clock import Clock
from controller.runtime.router import hints
from controller.runtime.router.decision_log import DecisionLog
from controller.runtime.router.decode_state import DecodeState
from controller.runtime.router.describe import SessionHistories, describe, session_id
from controller.runtime.router.failures import refused
from controller.runtime.router.handover import local_answer
from controller.runtime.router.hints import Objectives
from controller.runtime.router.leases import Pinned
from controller.runtime.router.leg import CoreSettings, Leg, PrefillFailedError
from controller.runtime.router.prefill_port import PrefillPort
from controller.runtime.router.queues import PrefillQueues, TooLateError, WorkerGoneError
from controller.runtime.router.records import RequestRecord, unix_now
from controller.runtime.router.remote import RemotePrefills
from controller.runtime.router.router_metrics import RouterMetrics
from controller.runtime.router.sight import DecodeSide, Sight
from controller.runtime.router.tickets import GoesLocalError
from controller.types import ClusterView, Decision, DecisionReason, Place, PrefillTask

logger = logging.getLogger(__name__)

__all__ = ["CoreSettings", "PrefillFailedError", "RouterCore"]

_PLACEMENTS_A_REQUEST = 2


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
        self.pinned = Pinned()
        self._kv_tokens: dict[int, int] = {}
        self._remote = RemotePrefills(costs, settings, port, queues, self.pinned, clock, metrics)
        self._sessions = SessionHistories()
        self.open_requests = 0

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
        told: Callable[[RequestRecord], None] = lambda record: None,
        local_because: DecisionReason | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Serve the prefill leg of one request: yields what the frontend shall see.

        `bound` is the decode worker that will stream, when the attachment chooses it; None when
        the frontend will (then its likely choice is assumed). `migrations` says how often the
        attachment has moved this stream before. No hand-over by `answer_by_s` (by the core's
        clock): the prefill runs locally, as after `max_wait_s` and `prefill_timeout_s` together.
        `only` names the prefill workers that can serve it, None: all. `fresh`: nothing ties the
        request to `bound`, so that the answer may name another decode worker. `held`: tokens of
        its prompt whose KV decode workers have, by id. `told` gets the record, to be read later.
        `local_because`: nothing is left to decide.
        With early rejection it may raise what the frontend turns into HTTP 529.
        """
        arrival_s = self._clock.now()
        limits = self._settings
        answer_by_s = min(answer_by_s, arrival_s + limits.max_wait_s + limits.prefill_timeout_s)
        side = DecodeSide(bound, fresh, held or {})
        task = self._task(request, request_id, arrival_s, side)
        record = self._record(request, task, migrations)
        told(record)
        leg = Leg(request, context, task, record, side, answer_by_s, only)
        self.open_requests += 1
        try:
            async with contextlib.aclosing(self._serve(leg, local_because)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.open_requests -= 1
            self._write(record)

    def refuse(self, request: dict[str, Any], request_id: str) -> Exception:
        """The attachment holds as much as it may: what to raise; counted and written down."""
        side = DecodeSide(None, False, {})
        record = self._record(request, self._task(request, request_id, self._clock.now(), side), 0)
        record.decision = Decision(Place.REMOTE, None, DecisionReason.OVERLOADED)
        record.outcome = "rejected"
        self._write(record)
        return refused("the router holds as many requests as it may (router.max_requests)")

    def _record(self, request: dict[str, Any], task: PrefillTask, migrations: int) -> RequestRecord:
        return RequestRecord(
            task,
            task.slo or self._objectives.default,
            unix_now(),
            migrations,
            tenant=hints.tenant(request),
            round=self._sessions.round(task.session_id, again=migrations > 0),
        )

    def _write(self, record: RequestRecord) -> None:
        record.seal(self._costs)
        self._metrics.observe(record, self._objectives.known_tenant(record.tenant))
        router = self._log.router
        self._log.write(record.row(router.policy, router.params_version))

    async def _serve(
        self, leg: Leg, local_because: DecisionReason | None
    ) -> AsyncGenerator[dict[str, Any], None]:
        task, record = leg.task, leg.record
        token_ids = leg.request.get("token_ids") or []
        failed: set[int] = set()
        if self.open_requests > self._settings.most_requests:
            local_because = DecisionReason.OVERLOADED
        if local_because is not None:
            decision = Decision(Place.LOCAL, None, local_because)
            record.decided(decision, self._view(leg, {}, failed))
            record.outcome = "local"
            yield self._local(leg, decision)
            return
        for attempt in range(_PLACEMENTS_A_REQUEST):
            cached = await self._port.cached_tokens(token_ids)
            view = self._view(leg, cached, failed)
            decision = decide(self._rule, task, view)
            record.decided(decision, view)
            watching = self._shadow() and view.prefill.worker_ids and task.sequences == 1
            if watching:
                record.would = decision
                decision = await self._stock(token_ids, task, view)
                record.decided(decision, view)
            if decision.place is Place.LOCAL or decision.worker_id is None:
                break
            try:
                again = partial(self._again, leg, cached, failed)
                remote = self._remote.run(leg, view, cached, again)
                async with contextlib.aclosing(remote) as chunks:
                    async for chunk in chunks:
                        record.outcome = "handed_over"
                        yield chunk
                return
            except (asyncio.TimeoutError, GoesLocalError) as error:
                self._waited(record, error)
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
                self._failed(record, error, failed)
                record.reroutes = attempt + 1
            finally:
                if watching:
                    await self._port.stock_done(task.request_id)
        record.outcome = "local"
        yield self._local(leg, record.decision or decision)

    def _again(
        self, leg: Leg, cached: dict[int, int], failed: set[int]
    ) -> tuple[Decision, ClusterView]:
        """What the rule says now of a prefill that waits; what ties it to a worker has tied it."""
        leg = replace(leg, side=replace(leg.side, fresh=False))
        # The queues are at work: they follow the live set another time.
        known = [unit for unit in self._port.live() if self._queues.serves(unit)]
        view = self._view_of(known, leg, cached, failed)
        decision = decide(self._rule, leg.task, view)
        leg.record.decided(decision, view)
        leg.record.seal(self._costs)
        return decision, view

    def _waited(self, record: RequestRecord, error: Exception) -> None:
        """Local, because it has waited long enough, or has chosen so meanwhile."""
        if not isinstance(error, GoesLocalError):
            self._fall_back(record, DecisionReason.WAIT_LIMIT)

    def _failed(self, record: RequestRecord, error: Exception, failed: set[int]) -> None:
        """Never again there; local, unless it can be placed once more."""
        logger.warning("router.prefill_failed request=%s error=%s", record.task.request_id, error)
        if record.decision is not None and record.decision.worker_id is not None:
            failed.add(record.decision.worker_id)
        gone = isinstance(error, WorkerGoneError) or (
            isinstance(error, PrefillFailedError) and error.gone
        )
        self._metrics.rerouted("instance_gone" if gone else "prefill_failed")
        self._fall_back(record, DecisionReason.PREFILL_FAILED)

    def _fall_back(self, record: RequestRecord, reason: DecisionReason) -> None:
        """Local instead of what was decided; the log keeps what the rule saw."""
        record.seal(self._costs)
        estimates_s = record.decision.estimates_s if record.decision else ()
        record.decision = Decision(Place.LOCAL, None, reason, estimates_s)

    async def _stock(self, token_ids: list[int], task: PrefillTask, view: ClusterView) -> Decision:
        """Shadow mode: what happens without us. Least work where Dynamo's router is not there."""
        worker_id = await self._port.stock_choice(token_ids, task.request_id)
        ids = view.prefill.worker_ids
        if worker_id not in ids:
            worker_id = ids[int(np.argmin(view.prefill.queue_s))]
        return Decision(Place.REMOTE, worker_id, DecisionReason.SHADOW_STOCK)

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

    def _view(self, leg: Leg, cached: dict[int, int], failed: set[int]) -> ClusterView:
        live = self._port.live()
        self._queues.sync(live, self._clock.now())
        return self._view_of(live, leg, cached, failed)

    def _view_of(
        self, live: Iterable[int], leg: Leg, cached: dict[int, int], failed: set[int]
    ) -> ClusterView:
        ids = self._remote.usable(live)
        only = leg.only
        if only is not None or failed:
            ids = tuple(
                unit
                for unit in ids
                if unit not in failed and (only is None or worker_of(unit) in only)
            )
        if len(self.pinned):
            ids = self._with_room(ids, leg.task.prompt_tokens)
        return self._sight.view(leg.task, leg.side, ids, cached, self._clock.now())

    def equip(self, worker_id: int, kv_tokens: int | None) -> None:
        """KV tokens that a prefill worker has room for, a rank; None: unknown."""
        if kv_tokens is not None:
            self._kv_tokens[worker_id] = kv_tokens

    def _with_room(self, ids: tuple[int, ...], prompt_tokens: int) -> tuple[int, ...]:
        """Those whose pinned KV leaves room for a prompt: elsewhere it would wait for a lease."""

        def has_room(unit_id: int) -> bool:
            room = self._kv_tokens.get(worker_of(unit_id))
            return room is None or self.pinned.tokens(unit_id) + prompt_tokens <= room

        return tuple(filter(has_room, ids)) or ids

    def _local(self, leg: Leg, decision: Decision) -> dict[str, Any]:
        """Book a local prefill; the answer that asks for it."""
        self._sight.book_local(leg.task, leg.side, decision, self._clock.now())
        return local_answer(decision.chunks, decision.decode_id)

    def decode_begun(self, request_id: str) -> None:
        """A decode worker has answered, or its leg has ended: a local prefill there is over, and
        of a remote one the KV has been pulled."""
        self._decode.local_done(request_id)
        self.pinned.unpin(request_id)

    def sweep(self) -> None:
        """End the leases that nobody ended. Call it now and then."""
        now_s, limits = self._clock.now(), self._settings
        longest_s = limits.max_wait_s + 3 * limits.prefill_timeout_s
        self._metrics.swept("queue", self._queues.sweep(now_s, longest_s))
        ended = self.pinned.sweep(now_s)
        if limits.handover_s is not None:
            self._metrics.swept("handover", ended)
