# SPDX-License-Identifier: Apache-2.0
"""Prompt text out of block ids, and the conversation that a session has so far. Pure.

Text is a function of the seed and the block id alone, so that prompts share a prefix exactly
where their block ids do, in every process and Python version.
"""

from __future__ import annotations

import hashlib
from typing import Any

from controller.runtime.load.options import Endpoint
from controller.simulation.traces import BLOCK_TOKENS, TraceRequest

# 256 byte values to letters by rough English frequency, one in five a blank: words of about four
# letters. No other whitespace and no capitals, so that common tokenizers treat all of it alike.
_LETTERS = "eeeeeeetttttaaaaoooooiiiinnnnssshhhrrrddlllcuumwfgypbvk"
_ALPHABET = bytes(
    ord(" ") if byte % 5 == 4 else ord(_LETTERS[byte * 7 % len(_LETTERS)]) for byte in range(256)
)


def words(key: str, chars: int) -> str:
    """`chars` characters of word-like text that depend on `key` alone; never a blank first."""
    if chars <= 0:
        return ""
    text = hashlib.shake_128(key.encode()).digest(chars).translate(_ALPHABET).decode("ascii")
    return text if text[0] != " " else f"a{text[1:]}"


def prompt_text(request: TraceRequest, seed: int, chars_per_token: float) -> str:
    """The text of the round's new tokens."""
    total = max(1, round(request.new_tokens * chars_per_token))
    block = max(1, round(BLOCK_TOKENS * chars_per_token))
    parts = [words(f"{seed}:block:{block_id}", block) for block_id in request.block_ids]
    shared = "".join(parts)[:total]
    private_key = f"{seed}:private:{request.session_id}:{request.round}"
    return shared + words(private_key, total - len(shared))


class Conversation:
    """What a session has said so far; the server's real answers are part of it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._messages: list[dict[str, str]] = []
        self._text = ""

    def ask(self, text: str) -> dict[str, Any]:
        """Add the user's words; the prompt field of the request body."""
        if self._endpoint is Endpoint.CHAT:
            self._messages.append({"role": "user", "content": text})
            return {"messages": list(self._messages)}
        self._text += text
        return {"prompt": self._text}

    def answered(self, text: str) -> None:
        """Add the server's answer."""
        if self._endpoint is Endpoint.CHAT:
            self._messages.append({"role": "assistant", "content": text})
        else:
            self._text += text


def request_body(
    request: TraceRequest,
    prompt: dict[str, Any],
    model: str,
    *,
    ignore_eos: bool,
    plain: bool,
) -> dict[str, Any]:
    """The whole request body. Dynamo's own fields only without `plain`."""
    body: dict[str, Any] = {
        "model": model,
        **prompt,
        "max_tokens": request.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plain:
        return body
    body["nvext"] = {"extra_fields": ["timing", "worker_id"]}
    if ignore_eos:
        # At the top level only: Dynamo 1.4.2 answers 400 to an `ignore_eos` inside nvext.
        body |= {"ignore_eos": True, "min_tokens": request.output_tokens}
    return body
