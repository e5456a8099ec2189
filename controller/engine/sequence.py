# SPDX-License-Identifier: Apache-2.0
"""One live request inside the engine.

Owns: the mutable record and its states. Does not own: the transitions (scheduler.py, engine.py)
nor the rules of its blocks (kv.py). Mutable and slotted because a step touches hundreds.
"""

from __future__ import annotations

from enum import Enum, auto

from controller.engine.values import EngineRequest


class SequenceState(Enum):
    """Where a live request stands."""

    WAITING = auto()
    """In the waiting queue; holds no blocks."""
    PULLING = auto()
    """Holds blocks for the whole prompt; its KV is on its way."""
    RUNNING = auto()
    """In the batch."""
    GONE = auto()
    """Finished or cancelled; whoever still holds it skips it."""


class Sequence:
    """A request's progress. All counts are tokens unless the name says blocks."""

    __slots__ = (
        "blocks",
        "cached_tokens",
        "capacity",
        "chunks_done",
        "computed",
        "decoding",
        "generated",
        "in_flight",
        "limit",
        "order",
        "preempted",
        "pull_blocks",
        "pull_pending",
        "read_pending",
        "registered_blocks",
        "request",
        "settled_blocks",
        "state",
        "target",
    )

    def __init__(self, request: EngineRequest, order: int) -> None:
        self.request = request
        self.order = order
        """Arrival number: FCFS goes by it, also for a preempted request."""
        self.state = SequenceState.WAITING
        self.limit = 1 if request.hold_kv else request.max_output_tokens
        """Tokens to generate."""
        self.generated = 0
        """Tokens generated and delivered."""
        self.in_flight = 0
        """Tokens that the running step yields; the next is composed on them."""
        self.target = request.prompt_tokens
        """Prompt and generated tokens: when all of them are computed, the next one is known."""
        self.computed = 0
        """Tokens whose KV lies in the blocks."""
        self.blocks: list[int] = []
        self.capacity = 0
        """Tokens that fit in the blocks."""
        self.settled_blocks = 0
        """Leading prompt blocks whose content is written."""
        self.registered_blocks = 0
        """Leading full prompt blocks that the prefix cache knows."""
        self.chunks_done = 0
        """Steps in which it computed prompt tokens since it was admitted."""
        self.cached_tokens: int | None = None
        """Prefix hits at the first admission; None before it."""
        self.decoding = False
        """The prompt is computed, or pulled up to its last token, and a token is left to get."""
        self.pull_pending = request.pull_kv
        self.read_pending = request.history_tokens
        """Leading tokens that are to be read, until they are there or were found here."""
        self.pull_blocks = 0
        self.preempted = False

    @property
    def needs_decodes(self) -> bool:
        """Whether a token is left to compute that is not under way."""
        return self.generated + self.in_flight < self.limit

    @property
    def prefills(self) -> bool:
        """Whether prompt tokens, or generated ones to recompute, are left."""
        return not self.decoding and self.computed < self.target

    def chunk(self, history: int, budget: int) -> int:
        """Prompt tokens of its next step, on top of `history` computed ones."""
        tokens = min(self.target - history, budget)
        caps = self.request.chunks
        if caps:
            tokens = min(tokens, caps[min(self.chunks_done, len(caps) - 1)])
        return tokens

    def lose_kv(self) -> None:
        """Back to nothing computed; what was generated is part of what to compute again."""
        self.computed = 0
        self.chunks_done = 0
        self.blocks = []
        self.capacity = 0
        self.settled_blocks = 0
        self.registered_blocks = 0
        self.decoding = False
        self.in_flight = 0
