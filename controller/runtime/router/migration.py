# SPDX-License-Identifier: Apache-2.0
"""What a stream has generated so far, and the request that continues it on another worker. Pure.

Owns: the arithmetic of migration and its limits. Does not own: noticing that a worker is gone
(failures.py), choosing another one (binding.py), sending (relay.py).

As the stock frontend does it (1.4.2): prompt and generated tokens together become the prompt of
the next worker, `max_tokens` shrinks by what was generated; requests with n > 1 and guided
decoding (its grammar would start anew) are not migrated. Unlike stock: `min_tokens` shrinks too,
the last chunk's usage counts the client's prompt and the whole answer, and a stream that has all
its tokens but lost its last chunk is finished here instead of being sent with `max_tokens: 0`.
"""

from __future__ import annotations

from typing import Any


class Continuation:
    """One answer, over as many decode workers as it takes."""

    def __init__(self, request: dict[str, Any], limit: int) -> None:
        self._request = request
        self._stop = request.get("stop_conditions") or {}
        self._limit = limit if _transferable(request) else 0
        self._generated: list[int] = []
        self._earlier = 0
        self._unfinished = _sequences(request)
        self.migrations = 0

    @property
    def finished(self) -> bool:
        """Every choice has had its last chunk."""
        return self._unfinished <= 0

    @property
    def may_migrate(self) -> bool:
        """Whether one more migration is allowed."""
        return self.migrations < self._limit and not self.finished

    @property
    def complete(self) -> bool:
        """Every token is out; only the last chunk with the reason was lost."""
        wanted = self._stop.get("max_tokens")
        return wanted is not None and 0 < wanted <= len(self._generated)

    @property
    def context_tokens(self) -> int:
        """Prompt and generated tokens: what a worker holds KV of."""
        return len(self._request.get("token_ids") or ()) + len(self._generated)

    def migrate(self) -> None:
        """The stream goes on elsewhere."""
        self.migrations += 1
        self._earlier = len(self._generated)

    def request(self) -> dict[str, Any]:
        """What the next worker is asked for."""
        if not self._generated:
            return self._request
        done = len(self._generated)
        stop = dict(self._stop)
        for key, least in (("max_tokens", 1), ("min_tokens", 0)):
            if stop.get(key) is not None:
                stop[key] = max(least, stop[key] - done)
        token_ids = [*(self._request.get("token_ids") or ()), *self._generated]
        return {**self._request, "token_ids": token_ids, "stop_conditions": stop}

    def forward(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Take note of a worker's chunk; returns it as the client shall see it."""
        tokens = chunk.get("token_ids")
        if tokens and self._limit:
            self._generated.extend(tokens)
        if chunk.get("finish_reason") is not None:
            self._unfinished -= 1
        usage = chunk.get("completion_usage")
        if not self._earlier or not isinstance(usage, dict):
            return chunk
        return {**chunk, "completion_usage": self._whole(usage)}

    def closing_chunk(self) -> dict[str, Any]:
        """The last chunk that a worker did not live to send."""
        self._unfinished = 0
        prompt, done = len(self._request.get("token_ids") or ()), len(self._generated)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": done,
            "total_tokens": prompt + done,
        }
        return {"token_ids": [], "index": 0, "finish_reason": "length", "completion_usage": usage}

    def _whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        """A continuation's usage, as if one worker had given the whole answer."""
        prompt = len(self._request.get("token_ids") or ())
        done = self._earlier + int(usage.get("completion_tokens") or 0)
        whole = {
            **usage,
            "prompt_tokens": prompt,
            "completion_tokens": done,
            "total_tokens": prompt + done,
        }
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and details.get("cached_tokens") is not None:
            cached = min(details["cached_tokens"], prompt)
            whole["prompt_tokens_details"] = {**details, "cached_tokens": cached}
        return whole


def _sequences(request: dict[str, Any]) -> int:
    return int((request.get("sampling_options") or {}).get("n") or 1)


def _transferable(request: dict[str, Any]) -> bool:
    """Whether an answer can be continued from its tokens alone."""
    sampling = request.get("sampling_options") or {}
    return (
        _sequences(request) == 1
        and sampling.get("guided_decoding") is None
        # Embeddings stand for the prompt: appended token ids would not be seen.
        and not request.get("prompt_embeds")
    )
