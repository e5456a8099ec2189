# SPDX-License-Identifier: Apache-2.0
"""The KV side channel between emulated workers: what NIXL does for real ones.

A decode worker renews the lease of blocks it waits for, reads what they hold, and releases
them; whoever wants to know what an engine holds asks for its load (loads.py). One JSON object a
line over TCP, request and answer alternating on a connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]
_LINE_LIMIT = 4 * 1024 * 1024


class SideChannelError(Exception):
    """The other side did not answer; its KV cannot be had."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Address of a worker's side channel."""

    host: str
    port: int


class SideChannelServer:
    """Serves the workers of one process; `engine_id` in each message picks the worker."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> Peer:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, self._host, 0, limit=_LINE_LIMIT)
        port = self._server.sockets[0].getsockname()[1]
        return Peer(self._host, port)

    def attach(self, engine_id: str, handler: Handler) -> None:
        """Answer messages for this engine with `handler`."""
        self._handlers[engine_id] = handler

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                message = json.loads(line)
                handler = self._handlers.get(message.get("engine_id", ""))
                answer = handler(message) if handler else {"ok": False, "error": "unknown engine"}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()


class SideChannelClient:
    """Calls side channels; one connection per peer, reopened when it broke."""

    def __init__(self, timeout_s: float = 5.0) -> None:
        self._timeout_s = timeout_s
        self._connections: dict[Peer, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._locks: dict[Peer, asyncio.Lock] = {}

    async def call(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """One request and its answer. Raises SideChannelError when there is none."""
        lock = self._locks.setdefault(peer, asyncio.Lock())
        async with lock:
            for attempt in (0, 1):
                reused = peer in self._connections
                try:
                    return await asyncio.wait_for(self._exchange(peer, message), self._timeout_s)
                except (OSError, asyncio.TimeoutError, ValueError) as error:
                    self._drop(peer)
                    # A kept connection may be stale after the peer restarted; a new one is not.
                    if attempt or not reused:
                        raise SideChannelError(
                            f"side channel {peer.host}:{peer.port}: {error or 'timeout'}"
                        ) from error
        raise AssertionError("unreachable")

    async def _exchange(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        if peer not in self._connections:
            self._connections[peer] = await asyncio.open_connection(
                peer.host, peer.port, limit=_LINE_LIMIT
            )
        reader, writer = self._connections[peer]
        writer.write(json.dumps(message).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise ConnectionResetError("closed by the peer")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _drop(self, peer: Peer) -> None:
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection[1].close()

    def close(self) -> None:
        """Close every connection."""
        for peer in list(self._connections):
            self._drop(peer)
