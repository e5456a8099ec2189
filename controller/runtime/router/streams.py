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
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from typing import Any

from controller.routing.binding import Bound
from controller.routing.prompts import block_sums
from controller.runtime.clock import Clock
from controller.runtime.router.binding import Binding, DecodeLoads
from controller.runtime.router.breaker import Breaker
from controller.runtime.router.core import RouterCore
from controller.runtime.router.decode_port import DecodePort
from controller.runtime.router.describe import session_id
from controller.runtime.router.failures import (
    StreamBrokenError,
    for_frontend,
    is_break,
    unavailable,
)
from controller.runtime.router.handover import (
    KvLease,
    decode_request,
    is_handover,
    local_answer,
    local_prefill,
    prefill_request,
    unrouted_request,
)
from controller.runtime.router.migration import Continuation
from controller.runtime.router.prefill_port import PrefillPort
from controller.runtime.router.records import RouterMetrics

logger = logging.getLogger(__name__)

# How often a waiting request looks up: a hand-over is at most this much older than we believe,
# or as old as this process was frozen.
_LOOK_S = 0.5
_TOO_OLD_TRIES = 2
# Of the frontend's stream time-out: what a prefill may take of it, so that a decode leg can
# begin, with a local prefill if need be, before the decode leg's own limit.
_PREFILL_SHARE = 0.7
_STREAM_SHARE = 0.9
_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Limits of the relay."""

    migration_limit: int
    lease: KvLease
    silence_s: float | None = None
    """The frontend's stream time-out, wall clock: it quarantines a router that is silent longer."""


class _Life:
    """One client's request between its legs."""

    def __init__(self, request: dict[str, Any], context: Any, limit: int, now_s: float) -> None:
        self.answer = Continuation(request, limit)
        self.session = session_id(request)
        self.sums = block_sums(request.get("token_ids") or ())
        self.context = context
        self.request_id: str = context.id()
        self.stopped = asyncio.ensure_future(_until_stopped(context))
        self.broken: set[int] = set()
        self.heard_s = now_s
        self.reloaded = False

    @property
    def leg_id(self) -> str:
        """An engine may still know the last leg by its id, so a migrated leg gets another."""
        count = self.answer.migrations
        return f"{self.request_id}-{count}" if count else self.request_id

    def left(self) -> bool:
        """The client has gone, or has enough."""
        return self.stopped.done() or self.context.is_stopped()


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
    ) -> None:
        self._core = core
        self._prefill = prefill
        self._decode = decode
        self._binding = binding
        self._loads = loads
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._breaker = Breaker()
        self._tasks: set[asyncio.Task[None]] = set()
        self.open_streams = 0

    async def serve(
        self, request: dict[str, Any], context: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Dynamo's request handler: the client's chunks."""
        limit = self._settings.migration_limit
        life = _Life(unrouted_request(request), context, limit, self._clock.wall_now())
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

    def _migrate(self, life: _Life, error: StreamBrokenError) -> None:
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

    async def _leg(self, life: _Life) -> AsyncGenerator[dict[str, Any], None]:
        """One decode worker's part of the answer, prefill included.

        StreamBrokenError when the worker did not finish it; every other error is the request's.
        """
        bound, held = self._bind(life)
        worker_id = bound.worker_id
        booking = self._loads.book(worker_id, life.answer.context_tokens)
        try:
            ready = await self._prefilled(life, bound, held)
            if ready is None:
                return
            request, worker_id = ready
            if worker_id != bound.worker_id:
                self._loads.close(booking)
                booking = self._loads.book(worker_id, life.answer.context_tokens)
            stream = self._decode.open(worker_id, request, life.context, life.leg_id)
            try:
                async with contextlib.aclosing(stream.chunks()) as chunks:
                    heard = False
                    while (chunk := await self._next(life, chunks, heard)) is not None:
                        if not heard:
                            self._check_loaded(life, request, chunk)
                            self._breaker.succeeded(worker_id)
                            self._binding.note(life.session, worker_id, life.sums)
                            self._core.local_done(life.request_id)
                        heard = True
                        self._loads.grow(booking, len(chunk.get("token_ids") or ()))
                        yield life.answer.forward(chunk)
                        life.heard_s = self._clock.wall_now()
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
        finally:
            self._loads.close(booking)
            self._core.local_done(life.request_id)

    def _bind(self, life: _Life) -> tuple[Bound, dict[int, int]]:
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

    async def _prefilled(
        self, life: _Life, bound: Bound, held: dict[int, int]
    ) -> tuple[dict[str, Any], int] | None:
        """The decode leg's request, its prompt prefilled or left to it, and the worker for it.

        None: the client left. The worker is the bound one unless a local prefill is better off
        elsewhere.
        """
        request = life.answer.request()
        for _ in range(_TOO_OLD_TRIES):
            answered = await self._ask(life, request, bound, held)
            if answered is None:
                return None
            chunk, completed_s = answered
            fresh = self._settings.lease.usable(self._clock.now() - completed_s)
            if life.left():
                if fresh and is_handover(chunk):
                    self._spawn(self._release(request, chunk))
                return None
            if fresh or not is_handover(chunk):
                return decode_request(request, chunk), self._placed(life, chunk, bound)
            logger.warning("router.handover_too_old request=%s", life.request_id)
        return decode_request(request, local_answer()), bound.worker_id

    def _placed(self, life: _Life, chunk: dict[str, Any], bound: Bound) -> int:
        """The decode worker that the answer names, if it can be, else the bound one."""
        named: int | None = local_prefill(chunk.get("disaggregated_params")).get("decode_id")
        if named is None or named in life.broken or named not in self._decode.live():
            return bound.worker_id
        return named

    async def _ask(
        self, life: _Life, request: dict[str, Any], bound: Bound, held: dict[int, int]
    ) -> tuple[dict[str, Any], float] | None:
        """The prefill's answer and the earliest time it can have been given; None: nobody waits.

        The leg has a context of its own, which does not follow the client's: this request is
        given up instead, and the core sees to what the worker still hands over (calls.py).
        """
        chunks = self._core.prefill(
            prefill_request(request),
            life.request_id,
            life.context.detached(life.leg_id),
            bound=bound.worker_id,
            migrations=life.answer.migrations,
            answer_by_s=self._answer_by_s(life),
            fresh=bound.fresh,
            held=held,
        )
        first = asyncio.ensure_future(anext(chunks))
        taken = False
        asked_s = self._clock.now()
        try:
            while True:
                # A process that was frozen sees the look's time-out before the answer has come up
                # through its tasks, so the answer may date from the look before this one.
                before_s, asked_s = asked_s, self._clock.now()
                await asyncio.wait(
                    {first, life.stopped}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                if first.done():
                    taken = True
                    return first.result(), before_s
                if life.stopped.done():
                    return None
        finally:
            self._spawn(self._finish(None if taken else first, chunks, request))

    def _answer_by_s(self, life: _Life) -> float:
        """When a prefill must be answered: counted from what the client heard last."""
        if self._settings.silence_s is None:
            return math.inf
        silent_s = self._clock.wall_now() - life.heard_s
        left_s = _PREFILL_SHARE * self._settings.silence_s - silent_s
        return self._clock.now() + left_s / self._clock.scale

    async def _finish(
        self,
        unwanted: asyncio.Future[dict[str, Any]] | None,
        chunks: AsyncGenerator[dict[str, Any], None],
        request: dict[str, Any],
    ) -> None:
        """Read a prefill to its end; an answer that nobody waits for is given up, or released."""
        if unwanted is not None:
            answer = await _given_up(unwanted)
            if answer is not None and is_handover(answer):
                await self._release(request, answer)
        with contextlib.suppress(Exception):
            async for _ in chunks:
                pass

    async def _release(self, request: dict[str, Any], chunk: dict[str, Any]) -> None:
        try:
            await self._prefill.release(request, chunk)
        except Exception as error:
            logger.warning("router.release_failed error=%s; the lease will end it", error)

    def _check_loaded(self, life: _Life, request: dict[str, Any], chunk: dict[str, Any]) -> None:
        """A decode leg that begins with an error may have lost its KV: that is tried once more.

        The prefill worker died after its answer, or gave its blocks up. Nothing is wrong with
        the decode worker, and nothing has been streamed yet.
        """
        reason = chunk.get("finish_reason")
        failed = reason.startswith("error") if isinstance(reason, str) else reason is not None
        if not failed or not is_handover(request.get("prefill_result") or {}):
            return
        if life.answer.may_migrate and not life.reloaded:
            life.reloaded = True
            raise _NotLoadedError(f"the hand-over could not be used: {reason}")

    async def _next(
        self, life: _Life, chunks: AsyncGenerator[dict[str, Any], None], heard: bool
    ) -> dict[str, Any] | None:
        """The next chunk, None at the end; every wait stays below the frontend's time-out.

        A worker that streams and falls silent for half of it is given up while there is still
        time for another one; one that has not begun may take nearly all that is left.
        """
        if self._settings.silence_s is None:
            return await anext(chunks, None)
        left_s = _STREAM_SHARE * self._settings.silence_s - (self._clock.wall_now() - life.heard_s)
        limit_s = 0.5 * self._settings.silence_s if heard else max(left_s, 0.1)
        try:
            return await asyncio.wait_for(anext(chunks, None), limit_s)
        except asyncio.TimeoutError:
            if heard:
                raise StreamBrokenError(f"silent for {limit_s:g} s") from None
            raise unavailable("the decode worker did not begin in time") from None

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _NotLoadedError(StreamBrokenError):
    """The decode worker could not get the KV; it is well itself."""


async def _given_up(first: asyncio.Future[dict[str, Any]]) -> dict[str, Any] | None:
    """Cancel a prefill; what it answered if the cancellation came too late."""
    while not first.done():
        first.cancel()
        # Again if need be: before Python 3.12 wait_for may swallow a cancellation.
        await asyncio.wait({first}, timeout=_AGAIN_S)
    if first.cancelled() or first.exception() is not None:
        return None
    return first.result()


async def _until_stopped(context: Any) -> None:
    await context.async_killed_or_stopped()
