# SPDX-License-Identifier: Apache-2.0
"""What replicas say to each other over their links, and how it is framed. No sockets here.

A frame is four bytes of length and a msgpack array whose first element names the message. Times are
spans, never instants: two machines share no clock.
"""

from __future__ import annotations

import msgspec

WIRE = 1
"""Version of what is said here: raise it with every change that an older router misreads."""
MOST_BYTES = 1 << 20
"""No message of ours is nearly as long; a longer one is not ours."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A prefill wants a place in a queue of yours."""

    number: int
    """By which the asker knows it."""
    worker_id: int
    rank: int
    uncached: int
    predicted_s: float
    due_in_s: float
    arrived_ago_s: float
    urgency: int
    jump_s: float
    prompt_tokens: int
    tenant: str | None
    cached: tuple[tuple[int, int, int], ...]
    """(worker, rank, tokens) of its prompt that caches hold."""
    only: tuple[int, ...] | None


class Granted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """It may be sent, to this worker."""

    number: int
    worker_id: int
    rank: int
    uncached: int
    predicted_s: float


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """There is no such queue here, or it cannot be in time any more."""

    number: int
    late: bool


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """It has given its place up, or has ended; `failed`: the worker did not do it."""

    number: int
    failed: bool = False


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Who asks; first on every link, and then now and then as a sign of life."""

    replica: str
    wire: int = 0


Message = Ask | Granted | Refused | Done | Hello
_DECODER = msgspec.msgpack.Decoder(Message)


def frame(message: Message) -> bytes:
    """On the wire."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


class Frames:
    """Messages out of the bytes of a link, in whatever pieces they come."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. ValueError for what is none of ours."""
        self._bytes += data
        messages: list[Message] = []
        while len(self._bytes) >= 4:
            length = int.from_bytes(self._bytes[:4], "big")
            if length > MOST_BYTES:
                raise ValueError(f"a message of {length} bytes")
            if len(self._bytes) < 4 + length:
                break
            messages.append(_DECODER.decode(bytes(self._bytes[4 : 4 + length])))
            del self._bytes[: 4 + length]
        return messages
