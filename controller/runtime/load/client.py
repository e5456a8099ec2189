# SPDX-License-Identifier: Apache-2.0
"""The HTTP side: find the model, send one request, follow its stream.

Failure policy: whatever a server or the network does ends in a status of the exchange; only a
server that cannot be reached before the start is a UserError. Nothing is retried.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from controller.errors import UserError
from controller.runtime.load.answer import Answer
from controller.runtime.load.options import LoadOptions
from controller.runtime.load.rows import Exchange, Status
from controller.runtime.load.sse import SseParser

_PROBE_TIMEOUT_S = 10.0
_ERROR_BODY_BYTES = 2048
# Below the idle limit of common servers (5 s and more): a connection that the server is about
# to close must not be taken for the next request.
_KEEPALIVE_S = 2.0
_DRAIN_S = 0.2


def open_http(options: LoadOptions) -> aiohttp.ClientSession:
    """A client without a limit on connections; close it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        # A compressed stream would be delivered in lumps.
        headers={"Accept-Encoding": "identity", **dict(options.headers)},
        timeout=aiohttp.ClientTimeout(total=options.timeout_s * options.time_scale),
    )


async def find_model(http: aiohttp.ClientSession, options: LoadOptions) -> str:
    """The model to ask for; UserError when the server is away or serves none."""
    url = f"{options.base_url}/v1/models"
    try:
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
        async with http.get(url, timeout=timeout) as response:
            status, body = response.status, await response.read()
    except asyncio.TimeoutError:
        raise UserError(f"{url}: no answer within {_PROBE_TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise UserError(
            f"{options.base_url}: cannot be reached ({describe(error)}); is the server up and "
            "--url right?"
        ) from None
    if options.model is not None:
        return options.model
    name = _first_model(body) if status == 200 else None
    if name is None:
        what = f"HTTP {status}" if status != 200 else "lists no model"
        raise UserError(f"{url}: {what}; wait until the workers are ready or give --model NAME")
    return name


def _first_model(body: bytes) -> str | None:
    try:
        name = json.loads(body)["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) else None


async def exchange_stream(
    http: aiohttp.ClientSession,
    url: str,
    exchange: Exchange,
    *,
    body: dict[str, Any],
    headers: dict[str, str],
    clock: Callable[[], float],
) -> None:
    """Send one request and follow its answer to the end; all outcomes land in `exchange`.

    Cancelled, it leaves status `unfinished` with what had arrived.
    """
    exchange.answer = Answer()
    exchange.status = Status.UNFINISHED
    payload = msgspec.json.encode(body)
    exchange.sent_at = clock()
    try:
        async with http.post(url, data=payload, headers=headers) as response:
            exchange.http_status = response.status
            if response.status == 200:
                await _follow(response, exchange.answer, clock)
                exchange.error = exchange.answer.error
                exchange.status = Status.OK if exchange.error is None else Status.ERROR
                exchange.ended_at = clock()
                await _drain(response)
            else:
                exchange.status = Status.HTTP_ERROR
                text = await response.content.read(_ERROR_BODY_BYTES)
                exchange.error = error_text(text.decode("utf-8", "replace"))
    except asyncio.TimeoutError:
        exchange.status, exchange.error = Status.TIMEOUT, "no end within the time-out"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        exchange.status, exchange.error = Status.ERROR, describe(error)
    finally:
        if exchange.ended_at is None:
            exchange.ended_at = clock()


async def _follow(
    response: aiohttp.ClientResponse, answer: Answer, clock: Callable[[], float]
) -> None:
    parser = SseParser()
    async for chunk in response.content.iter_any():
        at = clock()
        for event in parser.feed(chunk):
            answer.feed(event, at)
        if answer.done or answer.error is not None:
            break
    else:
        at = clock()
        for event in parser.close():
            answer.feed(event, at)
    answer.close()
    if not answer.seen and response.content_type != "text/event-stream":
        answer.error = f"the answer is {response.content_type}, not an event stream"


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the end of the body, which makes the connection reusable; give up soon."""
    with suppress(asyncio.TimeoutError, aiohttp.ClientError, OSError):
        await asyncio.wait_for(response.content.read(), _DRAIN_S)


def error_text(body: str) -> str:
    """The message inside an error body, or the body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if isinstance(value, dict):
        inner = value.get("error", value)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(message, str):
            return message
    return body


def describe(error: BaseException) -> str:
    """An exception in a few words; aiohttp's often have an empty text."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return str(error) or type(error).__name__
