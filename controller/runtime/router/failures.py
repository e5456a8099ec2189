# SPDX-License-Identifier: Apache-2.0
"""What a worker's failure means: is the worker gone, or was the request at fault?

Owns: reading the errors that Dynamo's Python client raises, and turning those that a client of
ours shall see into exceptions that the frontend understands. Does not own: what to do about them.

Found by experiment with Dynamo 1.4.2: a Python client gets a ValueError in mid-stream and a plain
Exception before the stream, whatever the class was on the other side; the kind is the first word
of the text. `Backend...` was raised by the worker's handler, the rest by the transport:
`Disconnected: Stream ended before generation completed` (killed worker), `CannotConnect: TCP
request to ... failed` (dead, still listed), `BackendInvalidArgument: ...` (bad request),
`BackendUnknown: {"message": ..., "code": 503}` (HttpError). The same text raised again by us would
reach the frontend as an invalid argument (HTTP 400).
"""

from __future__ import annotations

import json
import re

_KIND = re.compile(r"^(?:Backend)?([A-Z]\w+): ?(.*)$", re.DOTALL)
_BREAKS = frozenset(
    {"CannotConnect", "ConnectionTimeout", "Disconnected", "EngineShutdown", "StreamIncomplete"}
)
_AT_FAULT = frozenset({"InvalidArgument"})
_OS_ERROR = re.compile(r"\(os error \d+\)|[Cc]onnection (refused|reset)|[Bb]roken pipe")


_CLIENT_TYPES = (Exception, ValueError)


class StreamBrokenError(Exception):
    """A worker's stream that ended, or fell silent, before its finish."""


def is_break(error: BaseException) -> bool:
    """The worker, or the way to it, has gone: the request may be served elsewhere.

    What stock migrates (CannotConnect, Disconnected, ConnectionTimeout, a worker's own
    EngineShutdown), an incomplete stream, and what the socket itself says.
    """
    if isinstance(error, (StreamBrokenError, OSError)):
        return True
    kind, message = _parse(error)
    return kind in _BREAKS or (not kind and bool(_OS_ERROR.search(message)))


def is_request_fault(error: BaseException) -> bool:
    """The request itself is wrong; no worker would have served it."""
    return _parse(error)[0] in _AT_FAULT


def for_frontend(error: Exception) -> Exception:
    """The exception to raise for a client whose request ended with `error`.

    A break becomes HTTP 503, never the kind that it was: raised by our own handler,
    `EngineShutdown` would take the router out of service (1.4.2).
    """
    kind, message = _parse(error)
    http = _http_error(message)
    if http is not None:
        return _raised("HttpError", *http)
    if is_break(error):
        return unavailable(str(error))
    if not kind or type(error) not in _CLIENT_TYPES:
        return error
    return _raised(kind, message)


def unavailable(message: str) -> Exception:
    """Nobody can serve this now: HTTP 503 for the client (1.4.2 hides the text of a 5xx)."""
    return _raised("HttpError", 503, message)


def refused(message: str) -> Exception:
    """Early rejection: HTTP 529, as Dynamo's own admission control answers."""
    return _raised("HttpError", 529, message)


def _parse(error: BaseException) -> tuple[str, str]:
    """Kind and message; the kind is empty when it is no error of Dynamo's."""
    if type(error).__module__.startswith("dynamo."):  # a client that raises what it means
        return type(error).__name__, str(error)
    match = _KIND.match(str(error)) if type(error) in _CLIENT_TYPES else None
    return (match[1], match[2]) if match else ("", str(error))


def _raised(name: str, *args: object) -> Exception:
    """An exception class of Dynamo's by its name; `Unknown` for a name that it does not have."""
    from dynamo.llm import exceptions

    error: Exception = getattr(exceptions, name, exceptions.Unknown)(*args)
    return error


def _http_error(message: str) -> tuple[int, str] | None:
    if not message.startswith("{"):
        return None
    try:
        value = json.loads(message)
        return int(value["code"]), str(value["message"])
    except (ValueError, KeyError, TypeError):
        return None
