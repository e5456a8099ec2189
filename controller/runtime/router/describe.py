# SPDX-License-Identifier: Apache-2.0
"""From Dynamo's request dictionary to a PrefillTask, and the histories of known sessions."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from controller.routing.prompts import BLOCK_TOKENS, block_sums
from controller.runtime.router import hints
from controller.types import PrefillTask, Slo

_NOTHING: tuple[int | None, array[int]] = (None, array("I"))


def session_id(request: dict[str, Any]) -> str | None:
    """The conversation a request belongs to (header `x-dynamo-session-id`), None if unnamed."""
    context = request.get("agent_context")
    value = context.get("session_id") if isinstance(context, dict) else None
    return value if isinstance(value, str) and value else None


def describe(
    request: dict[str, Any], request_id: str, arrival_s: float, history_tokens: int, slo: Slo
) -> PrefillTask:
    """The task of a request; at least the last prompt token counts as increment."""
    prompt_tokens = max(1, len(request.get("token_ids") or ()))
    history = min(history_tokens, prompt_tokens - 1)
    return PrefillTask(
        request_id=request_id,
        arrival_s=arrival_s,
        history_tokens=history,
        increment_tokens=prompt_tokens - history,
        session_id=session_id(request),
        sequences=int((request.get("sampling_options") or {}).get("n") or 1),
        slo=slo,
        urgency=hints.urgency(request),
        jump_s=hints.jump_s(request),
    )


class SessionHistories:
    """How much of a prompt an earlier round of the same session had already, in tokens.

    Keeps chained block checksums, not tokens, of the latest prompt of at most `capacity`
    sessions; the least recently used goes first (`evicted` counts them). `holder` is the decode
    worker that has the KV; None where the attachment does not choose it.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[str, tuple[int | None, array[int]]] = OrderedDict()
        self._rounds: OrderedDict[str, int] = OrderedDict()
        self.evicted = 0

    def round(self, session: str | None, again: bool = False) -> int | None:
        """Number of this request in its session, as far as it went through here; None without one.

        `again`: another leg of the same request.
        """
        if not session:
            return None
        number = self._rounds.get(session, 0) + (0 if again else 1)
        self._rounds[session] = max(number, 1)
        self._rounds.move_to_end(session)
        while len(self._rounds) > self._capacity:
            self._rounds.popitem(last=False)
        return max(number, 1)

    def follow(
        self, session: str | None, token_ids: Sequence[int], holder: int | None = None
    ) -> int:
        """Length of the common block-aligned prefix with the last prompt that `holder` has.

        From now on this prompt is the session's last one, and `holder` has it.
        """
        if not session:
            return 0
        ours = block_sums(token_ids)
        known_holder, known = self._blocks.get(session, _NOTHING)
        self._blocks[session] = (holder, ours)
        self._blocks.move_to_end(session)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
            self.evicted += 1
        return _common(ours, known) * BLOCK_TOKENS if known_holder == holder else 0


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Length of the common prefix, in blocks."""
    matched = 0
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        matched += 1
    return matched
