# SPDX-License-Identifier: Apache-2.0
"""One streamed answer: what arrived, when, and what the server says about it. Pure.

Time comes in with each event. A token is delivered with the first chunk that carries text
(content, reasoning or a tool call); a role-only chunk delivers nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from controller.runtime.load.sse import SseEvent

_TEXT_KEYS = ("content", "reasoning_content", "reasoning", "text")
_NVEXT_DEPTH = 6
_MAX_MS = 1e12


@dataclass(frozen=True, slots=True)
class ServerTiming:
    """What the answer's `nvext` says; None is unknown. Milliseconds of wall clock.

    Dynamo's `ttft_ms` ends at prefill completion: the hand-over to the decode worker is not in it.
    """

    prefill_wait_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    prefill_worker_id: str | None = None
    decode_worker_id: str | None = None


class Answer:
    """Collects the events of one answer."""

    def __init__(self) -> None:
        self.token_times: list[float] = []
        """Arrival of each chunk that carried tokens."""
        self.error: str | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.response_id: str | None = None
        """Dynamo's id of the request, without the endpoint's prefix: the key of its records."""
        self.seen = False
        """Whether any event came at all."""
        self.done = False
        """Whether the closing `[DONE]` came."""
        self._finished = False
        self._text: list[str] = []
        self._nvext: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """The answer's content, without reasoning."""
        return "".join(self._text)

    @property
    def output_tokens(self) -> int:
        """Delivered tokens: as reported, else one a chunk."""
        return len(self.token_times) if self.completion_tokens is None else self.completion_tokens

    def feed(self, event: SseEvent, at: float) -> None:
        """Take in one event that arrived at `at`; the first error is kept."""
        self.seen = True
        if event.name == "error":
            self._fail(event.data or event.comment or "error event without a message")
            return
        if event.data == "[DONE]":
            self.done = True
            return
        if not event.data or event.name not in ("", "message"):
            # Dynamo's annotations are events of other names.
            return
        try:
            chunk = msgspec.json.decode(event.data)
        except (msgspec.DecodeError, UnicodeError):
            self._fail(f"broken chunk: {event.data}")
            return
        if isinstance(chunk, dict):
            self._chunk(chunk, at)

    def close(self) -> None:
        """The stream has ended; says what is missing in it."""
        if self.error is None and not (self.done or self._finished):
            self._fail("the stream ended early")
        elif self.error is None and not self.token_times:
            self._fail("the answer has no tokens")

    def timing(self) -> ServerTiming:
        """The last word of each `nvext` field."""
        found = dict(_leaves(self._nvext))
        decode = _identifier(found.get("decode_worker_id"))
        return ServerTiming(
            prefill_wait_ms=_number(found.get("prefill_wait_time_ms")),
            prefill_ms=_number(found.get("prefill_time_ms")),
            ttft_ms=_number(found.get("ttft_ms")),
            prefill_worker_id=_identifier(found.get("prefill_worker_id")),
            # A single worker is the one that streams.
            decode_worker_id=decode or _identifier(found.get("worker_id")),
        )

    def _chunk(self, chunk: dict[str, Any], at: float) -> None:
        if chunk.get("error"):
            self._fail(_message(chunk["error"]))
        if self.response_id is None and isinstance(chunk.get("id"), str):
            self.response_id = chunk["id"].removeprefix("chatcmpl-").removeprefix("cmpl-")
        if isinstance(chunk.get("usage"), dict):
            self._usage(chunk["usage"])
        if isinstance(chunk.get("nvext"), dict):
            self._nvext |= {key: each for key, each in chunk["nvext"].items() if each is not None}
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                self._choice(choice, at)

    def _choice(self, choice: dict[str, Any], at: float) -> None:
        delta = choice.get("delta")
        source = delta if isinstance(delta, dict) else choice
        if any(source.get(key) for key in (*_TEXT_KEYS, "tool_calls")):
            self.token_times.append(at)
        for key in ("content", "text"):
            if isinstance(source.get(key), str):
                self._text.append(source[key])
        reason = choice.get("finish_reason")
        if reason == "error":
            self._fail("finish_reason is error")
        elif reason is not None:
            self._finished = True

    def _usage(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        self.completion_tokens = _count(usage.get("completion_tokens"), self.completion_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _count(details.get("cached_tokens"), self.cached_tokens)

    def _fail(self, what: str) -> None:
        self.error = self.error or what


def _leaves(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every key with a plain value, however deep (the layout differs between releases)."""
    if depth > _NVEXT_DEPTH:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, (dict, list)):
                yield from _leaves(inner, depth + 1)
            elif inner is not None:
                yield str(key), inner
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, depth + 1)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # Compared first: an integer of hundreds of digits has no float.
    return float(value) if abs(value) < _MAX_MS and math.isfinite(value) else None


def _identifier(value: Any) -> str | None:
    # As text: Dynamo's ids are unsigned 64 bit, which no data frame holds beside empty cells.
    return str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _count(value: Any, before: int | None) -> int | None:
    usable = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if usable else before


def _message(error: Any) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return str(error)
