# SPDX-License-Identifier: Apache-2.0
"""Links between router replicas: one to each other member, to ask for places in its queues.

Owns: connecting, signs of life, noticing that a peer is gone or frozen. Does not own: what is asked
(group.py), who is a member (redis_store.py). A link that is down is tried again; meanwhile its
owner's queues are served here, by what is known here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from controller.runtime.replicas.wire import WIRE, Frames, Hello, Message, frame

logger = logging.getLogger(__name__)

_SIGN_S = 0.3
_SILENCE_S = 1.5
"""A peer that has said nothing for so long is gone or frozen (wall clock)."""
_CONNECT_S = 1.0
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.05, 1.0


class Link(asyncio.Protocol):
    """One end of a connection: messages in, messages out, `lost` once."""

    def __init__(
        self,
        heard: Callable[[Link, Message], None],
        lost: Callable[[Link], None],
        opened: Callable[[Link], None] = lambda link: None,
    ) -> None:
        self._heard = heard
        self._lost = lost
        self._opened = opened
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._heard_s = asyncio.get_running_loop().time()
        self.peer = ""
        self.greeted = False
        """The peer has said who it is, or has answered that."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._opened(self)

    def data_received(self, data: bytes) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        try:
            messages = self._frames.feed(data)
        except Exception as error:  # not one of ours, or another version
            logger.warning("replicas.link_unreadable peer=%s error=%s", self.peer, error)
            self.close()
            return
        for message in messages:
            if isinstance(message, Hello) and not self._greet(message):
                return
            self._heard(self, message)

    def _greet(self, hello: Hello) -> bool:
        """Old and new routers at once, during an update, would misread each other."""
        if hello.wire != WIRE:
            logger.error(
                "replicas.version_skew peer=%s theirs=%d ours=%d: no queues are shared with it",
                hello.replica,
                hello.wire,
                WIRE,
            )
            self.close()
            return False
        self.greeted = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost(self)

    def send(self, message: Message) -> None:
        """Say something; nothing happens on a link that is down."""
        if self._transport is not None:
            self._transport.write(frame(message))

    def silent_s(self) -> float:
        """How long the peer has said nothing."""
        return asyncio.get_running_loop().time() - self._heard_s

    def close(self) -> None:
        """Cut it at once."""
        if self._transport is not None:
            self._transport.abort()


class Dialer:
    """Keeps a link to one member up until cancelled; `changed` is called when it is up or down."""

    def __init__(
        self,
        replica: str,
        address: tuple[str, int],
        ourselves: str,
        heard: Callable[[Link, Message], None],
        changed: Callable[[str, Link | None], None],
    ) -> None:
        self._replica = replica
        self._address = address
        self._ourselves = ourselves
        self._heard = heard
        self._changed = changed

    async def run(self) -> None:
        """Connect, give signs of life, connect again."""
        pause_s = _LEAST_PAUSE_S
        while True:
            down: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            link = await self._connect(down)
            if link is None:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
                continue
            pause_s = _LEAST_PAUSE_S
            try:
                await self._keep(link, down)
            finally:
                link.close()
                self._changed(self._replica, None)
            await asyncio.sleep(pause_s)

    async def _connect(self, down: asyncio.Future[None]) -> Link | None:
        """None: the peer cannot be reached now."""
        loop = asyncio.get_running_loop()

        def lost(link: Link) -> None:
            if not down.done():
                down.set_result(None)

        # Not wait_for: before Python 3.12 it may swallow a cancellation.
        making = asyncio.ensure_future(
            loop.create_connection(lambda: Link(self._heard, lost), *self._address)
        )
        try:
            await asyncio.wait({making}, timeout=_CONNECT_S)
        finally:
            making.cancel()
        if not making.done() or making.cancelled() or making.exception() is not None:
            return None
        _, link = making.result()
        link.peer = self._replica
        return link

    async def _keep(self, link: Link, down: asyncio.Future[None]) -> None:
        """Until it is down; a peer counts as there once it has answered our greeting."""
        up = False
        link.send(Hello(self._ourselves, WIRE))
        while not down.done():
            await asyncio.wait({down}, timeout=_SIGN_S if up else _LEAST_PAUSE_S)
            if link.silent_s() > _SILENCE_S:
                logger.warning("replicas.peer_silent peer=%s", self._replica)
                return
            if not up and link.greeted and not down.done():
                up = True
                self._changed(self._replica, link)
            if up:
                link.send(Hello(self._ourselves, WIRE))
