# SPDX-License-Identifier: Apache-2.0
"""What the relay's streams hold on each decode worker, and binding new ones by it.

Owns: the KV context of streams. Does not own: the preferences (controller.routing.binding), what
prompts a worker has seen (controller.routing.prompts), discovery, the breaker, sending. Time comes
in as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from controller.routing.binding import Binder, Bound, Candidate
from controller.routing.prompts import BLOCK_TOKENS, PromptIndex

# Reports come with every forward pass; an engine that sends none for this long is idle.
_REPORT_LIFE_S = 2.0


class Booking:
    """One stream's KV context on one worker."""

    __slots__ = ("tokens", "worker_id")

    def __init__(self, worker_id: int, tokens: int) -> None:
        self.worker_id = worker_id
        self.tokens = tokens


class DecodeLoads:
    """KV context a decode worker holds: the larger of what we sent there and what it reports.

    Our own streams are known exactly and at once; the reports add those of other routers, and
    are late.
    """

    def __init__(self, on_change: Callable[[int, int], None] = lambda worker, tokens: None) -> None:
        """`on_change(worker_id, tokens)` hears of every booking and its growth and end."""
        self._on_change = on_change
        self._booked: dict[int, int] = {}
        self._reported: dict[int, tuple[int, float]] = {}

    def book(self, worker_id: int, tokens: int) -> Booking:
        """A stream starts; hand the booking to `close` when it ends."""
        self._booked[worker_id] = self._booked.get(worker_id, 0) + tokens
        self._on_change(worker_id, tokens)
        return Booking(worker_id, tokens)

    def grow(self, booking: Booking, tokens: int) -> None:
        """The stream has generated more tokens."""
        booking.tokens += tokens
        self._booked[booking.worker_id] += tokens
        self._on_change(booking.worker_id, tokens)

    def close(self, booking: Booking) -> None:
        """The stream has ended."""
        left = self._booked[booking.worker_id] - booking.tokens
        self._on_change(booking.worker_id, -booking.tokens)
        booking.tokens = 0
        if left:
            self._booked[booking.worker_id] = left
        else:
            del self._booked[booking.worker_id]

    def observe(self, worker_id: int, kv_tokens: int, now_s: float) -> None:
        """A worker's own figure, as of now."""
        self._reported[worker_id] = (kv_tokens, now_s)

    def forget_all_but(self, live: Sequence[int]) -> None:
        """Drop the reports of workers that have left."""
        for worker_id in [w for w in self._reported if w not in live]:
            del self._reported[worker_id]

    def context_tokens(self, worker_id: int, now_s: float) -> int:
        """KV tokens on a worker, as far as is known."""
        reported, at_s = self._reported.get(worker_id, (0, 0.0))
        if now_s - at_s > _REPORT_LIFE_S:
            reported = 0
        return max(self._booked.get(worker_id, 0), reported)


class SharedSessions(Protocol):
    """Tells other replicas where a session runs."""

    def note(self, session: str, worker_id: int) -> None: ...


class Binding:
    """Binds requests by what is known here: loads, prompts, sessions."""

    def __init__(self, loads: DecodeLoads, rng: Random, capacity: int = 10_000) -> None:
        self._loads = loads
        self._binder = Binder(rng, capacity)
        self.shared: SharedSessions | None = None
        """Who tells the other replicas."""
        self.prompts = PromptIndex()
        self.kv_tokens: int | None = None
        """KV tokens that a decode worker has room for; None: unknown."""

    def hold_at_most(self, kv_tokens: int) -> None:
        """What a decode worker has room for: the index forgets what cannot be there any more."""
        self.kv_tokens = kv_tokens
        self.prompts.blocks_a_worker = max(1, kv_tokens // BLOCK_TOKENS)

    @property
    def evicted_sessions(self) -> int:
        """Sessions forgotten for want of room, so far."""
        return self._binder.evicted

    def choose(
        self,
        session: str | None,
        candidates: Sequence[int],
        now_s: float,
        hits: Mapping[int, int] | None = None,
        prompt_tokens: int = 0,
    ) -> Bound:
        """The worker for one request; `candidates` must not be empty."""
        return self._binder.choose(
            session, [self._candidate(w, now_s) for w in candidates], hits or {}, prompt_tokens
        )

    def _candidate(self, worker_id: int, now_s: float) -> Candidate:
        context = self._loads.context_tokens(worker_id, now_s)
        room = None if self.kv_tokens is None else self.kv_tokens - context
        return Candidate(worker_id, context, room)

    def adopt(self, session: str, worker_id: int) -> None:
        """Another replica has bound this session."""
        self._binder.note(session, worker_id)

    def note(self, session: str | None, worker_id: int, sums: Sequence[int] = ()) -> None:
        """The session's stream, with this prompt, runs here: its KV will be here next time."""
        self._binder.note(session, worker_id)
        if session and self.shared is not None:
            self.shared.note(session, worker_id)
        self.prompts.note(worker_id, sums)
