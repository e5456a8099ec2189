# SPDX-License-Identifier: Apache-2.0
"""Server-sent events out of bytes that may be split anywhere. Pure."""

from __future__ import annotations

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. `comment` holds the `:` lines: Dynamo puts an error's message there."""

    name: str
    data: str
    comment: str


class SseParser:
    """Feed it bytes, get the events that they complete (WHATWG rules, ids ignored)."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._rest = ""
        self._name = ""
        self._data: list[str] = []
        self._comments: list[str] = []

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Events completed by `chunk`."""
        return self._take(self._rest + self._decoder.decode(chunk))

    def close(self) -> list[SseEvent]:
        """Events that only lack their blank line: some servers omit it before closing."""
        return self._take(self._rest + self._decoder.decode(b"", final=True) + "\n\n")

    def _take(self, text: str) -> list[SseEvent]:
        # A CR at the very end may be half of a CR LF: it waits for the next chunk.
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = text.split("\n")
        self._rest = rest + held
        events = []
        for line in lines:
            event = self._line(line)
            if event is not None:
                events.append(event)
        return events

    def _line(self, line: str) -> SseEvent | None:
        if not line:
            return self._end()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "":
            self._comments.append(value)
        elif field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None

    def _end(self) -> SseEvent | None:
        event = SseEvent(self._name, "\n".join(self._data), "\n".join(self._comments))
        empty = not self._data and not self._name
        self._name, self._data, self._comments = "", [], []
        return None if empty else event
