# SPDX-License-Identifier: Apache-2.0
"""One remote prefill that was sent, and the duty to release its KV if nobody takes it over.

A finished prefill keeps its blocks pinned until a decode leg has pulled them or the engine's
lease ends (docs/handover.md, release). Whoever gives a call up - time-out, cancellation, a dead
client - leaves it to itself: it runs to its end, and what it hands over is released.

A prefill that was sent is not stopped while it may still finish. Dynamo (1.4.2) closes a stream
as soon as the worker has been told to stop, and what the worker says after that is lost: were it
the answer of a prefill that has just finished, its blocks would stay pinned for the whole lease
(1 to 3 of 150 random cancellations). What a left prefill still computes is bounded, since only
the in-flight bound's worth of tokens is ever at a worker; a waiting one is dropped at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

from controller.runtime.router.handover import is_handover

logger = logging.getLogger(__name__)


class PrefillStream(Protocol):
    """A prefill on a worker."""

    def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The worker's chunks; iterate once."""
        ...

    def stop(self) -> None:
        """Ask the worker to stop; its stream ends, and what it still says may be lost."""
        ...


class _End:
    """Marks the end of a stream in the queue; `error` is why, None for a regular end."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class PrefillCall:
    """A sent prefill. Read it with `next()`; say `abandon()` when its answer is not wanted."""

    def __init__(
        self, stream: PrefillStream, release: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        self._stream = stream
        self._release = release
        self._queue: asyncio.Queue[dict[str, Any] | _End] = asyncio.Queue()
        self._abandoned = False
        self._stopped = False
        self.task = asyncio.create_task(self._pump())
        """Ends when the worker's stream has ended and nothing is left to release."""

    async def next(self, limit_s: float) -> dict[str, Any] | None:
        """The next chunk, None at the end. Raises what the stream raised, or TimeoutError."""
        item = await asyncio.wait_for(self._queue.get(), limit_s)
        if not isinstance(item, _End):
            return item
        self._queue.put_nowait(item)
        if item.error is not None:
            raise item.error
        return None

    def abandon(self, stop_after_s: float = 0.0) -> None:
        """Nobody wants the rest: release what the worker may still hand over.

        It is stopped if it has not ended after `stop_after_s` of wall clock.
        """
        if self._abandoned:
            return
        self._abandoned = True
        self._stop_after(stop_after_s)
        unread = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for item in unread:
            if not isinstance(item, _End) and is_handover(item):
                self._queue.put_nowait(item)
        if self.task.done() and not self._queue.empty():
            self.task = asyncio.create_task(self._release_unread())

    @property
    def runs_on(self) -> bool:
        """Abandoned, not stopped, and still at work at its worker."""
        return self._abandoned and not self._stopped and not self.task.done()

    def _stop_after(self, delay_s: float) -> None:
        if delay_s <= 0:
            self._stop()
        elif not self.task.done():
            stopping = asyncio.get_running_loop().call_later(delay_s, self._stop)
            self.task.add_done_callback(lambda task: stopping.cancel())

    def _stop(self) -> None:
        self._stopped = True
        self._stream.stop()

    async def _pump(self) -> None:
        end = _End(None)
        try:
            async for chunk in self._stream.chunks():
                self._queue.put_nowait(chunk)
                if self._abandoned:
                    await self._release_unread()
        except Exception as error:
            end = _End(error)
        self._queue.put_nowait(end)
        if self._abandoned:
            await self._release_unread()

    async def _release_unread(self) -> None:
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, _End) or not is_handover(item):
                continue
            try:
                await self._release(item)
            except Exception as error:
                logger.warning("router.release_failed error=%s; the lease will end it", error)
