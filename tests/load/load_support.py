# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-like streaming server on loopback whose behaviour a test chooses."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class Received:
    """One request as the server saw it."""

    at: float
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class FakeServer:
    """`async with FakeServer(handler) as server`: requests are recorded, `handler` answers."""

    def __init__(self, handler: Handler, models: tuple[str, ...] = ("tiny",)) -> None:
        self.received: list[Received] = []
        self.url = ""
        self._handler = handler
        self._models = models

    async def __aenter__(self) -> FakeServer:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._list)
        app.router.add_post("/v1/{tail:.*}", self._post)
        # A handler that never answers must not hold up the end of the test.
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self._models]})

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        now = asyncio.get_running_loop().time()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(now, request.path, headers, body))
        return await self._handler(request, body)


def sse(value: object) -> bytes:
    """One event."""
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def token(text: str, *, chat: bool = True, reason: str | None = None, **more: Any) -> bytes:
    """One chunk with text."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    return sse({"choices": [choice], **more})


def answer_bytes(
    body: dict[str, Any], *, usage: bool = True, nvext: dict[str, Any] | None = None
) -> list[bytes]:
    """A whole answer in events: role chunk, tokens `t0 t1 ...`, usage, [DONE]."""
    chat = "messages" in body
    count = body["max_tokens"]
    events = [sse({"choices": [{"delta": {"role": "assistant", "content": ""}}]})] if chat else []
    events += [
        token(f"t{n} ", chat=chat, reason="length" if n == count - 1 else None)
        for n in range(count)
    ]
    if nvext is not None:
        events.append(sse({"choices": [], "nvext": nvext}))
    if usage:
        prompt = len(json.dumps(body.get("messages", body.get("prompt"))))
        events.append(
            sse({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": count}})
        )
    return [*events, sse("[DONE]")]


def streaming(
    *,
    first_s: float = 0.0,
    gap_s: float = 0.0,
    cut: Callable[[list[bytes]], list[bytes]] = lambda events: events,
    **answer: Any,
) -> Handler:
    """A handler that streams `answer_bytes`, after `cut` has had its way with the pieces."""

    async def handle(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(first_s)
        for piece in cut(answer_bytes(body, **answer)):
            await response.write(piece)
            await asyncio.sleep(gap_s)
        return response

    return handle


def together(count: int) -> Handler:
    """A handler that answers nobody before `count` requests are there: a very slow server."""
    waiting = 0
    complete = asyncio.Event()

    async def handle(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal waiting
        waiting += 1
        if waiting == count:
            complete.set()
        await complete.wait()
        return await streaming()(request, body)

    return handle


def status(code: int, body: dict[str, Any] | str) -> Handler:
    """A handler that refuses."""

    async def handle(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        if isinstance(body, str):
            return web.Response(status=code, text=body)
        return web.json_response(body, status=code)

    return handle


async def never(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """A handler that does not answer."""
    await asyncio.sleep(3600)
    raise AssertionError("unreachable")


@contextmanager
def threaded(server: FakeServer) -> Iterator[FakeServer]:
    """The server in a loop of its own, for tests that call blocking code."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
