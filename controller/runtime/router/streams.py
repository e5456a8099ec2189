# SPDX-License-Identifier: Apache-2.0
"""The life of one client's stream in the relay: bind, prefill, decode leg, and again if it breaks.

Owns: the order of these steps, both legs' cancellation, the hand-over's age, when a stream
migrates. Does not own: placing the prefill (core.py), the arithmetic of a migration
(migration.py), what an error means (failures.py).

A hand-over that was sent to a decode worker is never used or released again, whatever became of
that worker: if its blocks were pulled and reused meanwhile, another worker would take the wrong
KV into its prefix cache. Its lease ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator
from typing import Any

from controller.routing.binding import Bound
from controller.runtime.clock import Clock
from controller.runtime.router.binding import Binding, Booking, DecodeLoads
from controller.runtime.router.breaker import Breaker
from controller.runtime.router.core import RouterCore
from controller.runtime.router.decision_log import DecisionLog
from controller.runtime.router.decode_port import DecodePort
from controller.runtime.router.failures import (
    StreamBrokenError,
    for_frontend,
    is_break,
    unavailable,
)
from controller.runtime.router.handover import is_handover, unrouted_request
from controller.runtime.router.life import Life, Pace, StreamSettings
from controller.runtime.router.prefill_leg import PrefillLegs
from controller.runtime.router.prefill_port import PrefillPort
from controller.runtime.router.router_metrics import RouterMetrics

logger = logging.getLogger(__name__)

__all__ = ["StreamRelay", "StreamSettings"]

# Of the frontend's stream time-out.
_STREAM_SHARE = 0.9


class StreamRelay:
    """Serves whole requests over the two pools. Single-threaded, on the event loop."""

    def __init__(
        self,
        core: RouterCore,
        prefill: PrefillPort,
        decode: DecodePort,
        binding: Binding,
        loads: DecodeLoads,
        settings: StreamSettings,
        clock: Clock,
        metrics: RouterMetrics,
        log: DecisionLog,
    ) -> None:
        self._core = core
        self._prefills = PrefillLegs(core, prefill, decode, settings, clock)
        self._decode = decode
        self._binding = binding
        self._loads = loads
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._breaker = Breaker()
        self.open_streams = 0

    async def serve(
        self, request: dict[str, Any], context: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Dynamo's request handler: the client's chunks. With too many streams open, HTTP 529."""
        if self.open_streams >= self._settings.most_streams:
            raise self._core.refuse(request, context.id())
        limit = self._settings.migration_limit
        now_s = self._clock.now(), self._clock.wall_now()
        life = Life(unrouted_request(request), context, limit, *now_s)
        self.open_streams += 1
        try:
            while True:
                try:
                    async with contextlib.aclosing(self._leg(life)) as chunks:
                        async for chunk in chunks:
                            yield chunk
                    return
                except StreamBrokenError as error:
                    if life.answer.finished or life.left():
                        return
                    if life.answer.complete:
                        yield life.answer.closing_chunk()
                        return
                    self._migrate(life, error)
        finally:
            self.open_streams -= 1
            life.stopped.cancel()

    def _migrate(self, life: Life, error: StreamBrokenError) -> None:
        if not life.answer.may_migrate:
            raise for_frontend(error)
        life.answer.migrate()
        self._metrics.migrated()
        logger.warning(
            "router.stream_migrated request=%s migrations=%d error=%s",
            life.request_id,
            life.answer.migrations,
            error,
        )

    async def _leg(self, life: Life) -> AsyncGenerator[dict[str, Any], None]:
        """One decode worker's part of the answer, prefill included.

        StreamBrokenError when the worker did not finish it; every other error is the request's.
        """
        bound, held = self._bind(life)
        worker_id = bound.worker_id
        booking = self._loads.book(worker_id, life.answer.context_tokens)
        pace = Pace(self._clock.now() if life.answer.migrations else life.began_s)
        finish = "left"
        try:
            ready = await self._prefills.run(life, bound, held)
            if ready is None:
                return
            request, worker_id = ready
            if worker_id != bound.worker_id:
                self._loads.close(booking)
                booking = self._loads.book(worker_id, life.answer.context_tokens)
            streamed = self._stream(life, worker_id, request, booking, pace)
            async with contextlib.aclosing(streamed) as chunks:
                async for chunk in chunks:
                    yield chunk
            finish = "finished" if life.answer.finished else "left"
        except StreamBrokenError:
            finish = "broken"
            raise
        except Exception:
            finish = "error"
            raise
        finally:
            self._loads.close(booking)
            self._core.decode_begun(life.request_id)
            self._ended(life, worker_id, "finished" if life.answer.finished else finish, pace)

    async def _stream(
        self, life: Life, worker_id: int, request: dict[str, Any], booking: Booking, pace: Pace
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of one decode leg, as the client shall see them."""
        stream = self._decode.open(worker_id, request, life.context, life.leg_id)
        pulls = is_handover(request.get("prefill_result") or {})
        try:
            async with contextlib.aclosing(stream.chunks()) as chunks:
                chunk = await self._first(life, chunks, pulls)
                if chunk is not None:
                    self._begun(life, worker_id, chunk, pulls)
                while chunk is not None:
                    tokens = len(chunk.get("token_ids") or ())
                    self._loads.grow(booking, tokens)
                    yield life.answer.forward(chunk)
                    pace.count(tokens, self._clock.now())
                    life.heard_s = self._clock.wall_now()
                    chunk = await self._next(chunks)
        except _NotLoadedError:
            raise
        except Exception as error:
            if not is_break(error):
                raise for_frontend(error) from error
            life.broken.add(worker_id)
            self._breaker.failed(worker_id, self._clock.wall_now())
            raise StreamBrokenError(f"worker {worker_id:x}: {error}") from error
        finally:
            if not life.answer.finished:
                stream.stop()
        if not (life.answer.finished or life.left()):
            life.broken.add(worker_id)
            raise StreamBrokenError(f"worker {worker_id:x}: ended without a finish")

    def _begun(self, life: Life, worker_id: int, chunk: dict[str, Any], pulls: bool) -> None:
        """A decode worker has answered."""
        self._check_loaded(life, chunk, pulls)
        self._breaker.succeeded(worker_id)
        self._binding.note(life.session, worker_id, life.sums)
        self._core.decode_begun(life.request_id)

    def _ended(self, life: Life, worker_id: int, finish: str, pace: Pace) -> None:
        outcome = pace.outcome(
            life.request_id, life.answer.migrations, worker_id, finish, self._clock.now()
        )
        self._log.write(outcome)
        self._metrics.streamed(outcome, life.record.predicted_ttft_s if life.record else None)

    def _bind(self, life: Life) -> tuple[Bound, dict[int, int]]:
        """The next leg's decode worker; one that broke this stream only if there is no other."""
        live = self._decode.live()
        if not live:
            raise unavailable("no decode worker is registered")
        self._loads.forget_all_but(live)
        usable = self._breaker.usable(live, self._clock.wall_now())
        candidates = (
            [w for w in usable if w not in life.broken]
            or [w for w in live if w not in life.broken]
            or list(live)
        )
        self._binding.prompts.forget_all_but(live)
        hits = self._binding.prompts.hits(life.sums)
        tokens = life.answer.context_tokens
        return self._binding.choose(life.session, candidates, self._clock.now(), hits, tokens), hits

    def _check_loaded(self, life: Life, chunk: dict[str, Any], pulls: bool) -> None:
        """A decode leg that begins with an error may have lost its KV: that is tried once more.

        The prefill worker died after its answer, or gave its blocks up. Nothing is wrong with
        the decode worker, and nothing has been streamed yet.
        """
        reason = chunk.get("finish_reason")
        failed = reason.startswith("error") if isinstance(reason, str) else reason is not None
        if failed and pulls and life.answer.may_migrate and not life.reloaded:
            life.reloaded = True
            raise _NotLoadedError(f"the hand-over could not be used: {reason}")

    async def _first(
        self, life: Life, chunks: AsyncGenerator[dict[str, Any], None], pulls: bool
    ) -> dict[str, Any] | None:
        """The first chunk, None at the end; the wait stays below the frontend's time-out.

        It may take nearly all that is left of that. A transfer has a limit of its own: past it the
        prompt is prefilled where it streams, if there is time for that.
        """
        silence_s = self._settings.silence_s
        left_s = math.inf
        if silence_s is not None:
            left_s = _STREAM_SHARE * silence_s - (self._clock.wall_now() - life.heard_s)
        limit_s = max(left_s, 0.1)
        retry = pulls and not life.local_only and life.answer.may_migrate
        if retry:
            limit_s = min(limit_s, self._settings.transfer_s)
        try:
            return await asyncio.wait_for(
                anext(chunks, None), None if limit_s == math.inf else limit_s
            )
        except asyncio.TimeoutError:
            if retry and limit_s < left_s:
                life.local_only = True
                raise _NotLoadedError(f"no token {limit_s:g} s after the hand-over") from None
            raise unavailable("the decode worker did not begin in time") from None

    async def _next(self, chunks: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any] | None:
        """The next chunk, None at the end.

        A worker that falls silent for half of the frontend's time-out is given up while there is
        still time for another one.
        """
        if self._settings.silence_s is None:
            return await anext(chunks, None)
        limit_s = 0.5 * self._settings.silence_s
        try:
            return await asyncio.wait_for(anext(chunks, None), limit_s)
        except asyncio.TimeoutError:
            raise StreamBrokenError(f"silent for {limit_s:g} s") from None


class _NotLoadedError(StreamBrokenError):
    """The decode worker could not get the KV; it is well itself."""
