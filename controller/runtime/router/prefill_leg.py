# SPDX-License-Identifier: Apache-2.0
"""The relay's prefill legs: ask the core, watch the answer's age, release what nobody takes.

Owns: asking while the client may leave, the hand-over's age. Does not own: placing (core.py), the
decode leg (streams.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from controller.routing.binding import Bound
from controller.runtime.clock import Clock
from controller.runtime.router.core import RouterCore
from controller.runtime.router.decode_port import DecodePort
from controller.runtime.router.handover import (
    decode_request,
    is_handover,
    local_answer,
    local_prefill,
    prefill_request,
)
from controller.runtime.router.life import Life, StreamSettings
from controller.runtime.router.prefill_port import PrefillPort
from controller.types import DecisionReason

logger = logging.getLogger(__name__)

# How often a waiting request looks up: a hand-over is at most this much older than we believe,
# or as old as this process was frozen.
_LOOK_S = 0.5
_TOO_OLD_TRIES = 2
# Of the frontend's stream time-out: what a prefill may take of it, so that a decode leg can
# begin, with a local prefill if need be, before the decode leg's own limit.
_PREFILL_SHARE = 0.7
_AGAIN_S = 0.05


class PrefillLegs:
    """The prefill legs of a relay's streams."""

    def __init__(
        self,
        core: RouterCore,
        prefill: PrefillPort,
        decode: DecodePort,
        settings: StreamSettings,
        clock: Clock,
    ) -> None:
        self._core = core
        self._prefill = prefill
        self._decode = decode
        self._settings = settings
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(
        self, life: Life, bound: Bound, held: dict[int, int]
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

    def _placed(self, life: Life, chunk: dict[str, Any], bound: Bound) -> int:
        """The decode worker that the answer names, if it can be, else the bound one."""
        named: int | None = local_prefill(chunk.get("disaggregated_params")).get("decode_id")
        if named is None or named in life.broken or named not in self._decode.live():
            return bound.worker_id
        return named

    async def _ask(
        self, life: Life, request: dict[str, Any], bound: Bound, held: dict[int, int]
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
            told=lambda record: setattr(life, "record", record),
            local_because=DecisionReason.TRANSFER_LIMIT if life.local_only else None,
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
            self._spawn(self._finish(None if taken else first, chunks, request, life.request_id))

    def _answer_by_s(self, life: Life) -> float:
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
        request_id: str,
    ) -> None:
        """Read a prefill to its end; an answer that nobody waits for is given up, or released."""
        if unwanted is not None:
            answer = await _given_up(unwanted)
            if answer is not None and is_handover(answer):
                await self._release(request, answer)
        with contextlib.suppress(Exception):
            async for _ in chunks:
                pass
        if unwanted is not None:
            self._core.decode_begun(request_id)  # it will not: nothing is kept for it

    async def _release(self, request: dict[str, Any], chunk: dict[str, Any]) -> None:
        try:
            await self._prefill.release(request, chunk)
        except Exception as error:
            logger.warning("router.release_failed error=%s; the lease will end it", error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _given_up(first: asyncio.Future[dict[str, Any]]) -> dict[str, Any] | None:
    """Cancel a prefill; what it answered if the cancellation came too late."""
    while not first.done():
        first.cancel()
        # Again if need be: before Python 3.12 wait_for may swallow a cancellation.
        await asyncio.wait({first}, timeout=_AGAIN_S)
    if first.cancelled() or first.exception() is not None:
        return None
    return first.result()
