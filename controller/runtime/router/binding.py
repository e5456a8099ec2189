# SPDX-License-Identifier: Apache-2.0
"""Which decode worker streams a request, when the router chooses (relay attachment). Pure.

Owns: the KV context that streams hold on each decode worker, and which worker a session is bound
to. Does not own: discovery, the breaker, sending. Time comes in as an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random

# Reports come with every forward pass; an engine that sends none for this long is idle.
_REPORT_LIFE_S = 2.0
# Workers this close to the least loaded one are as good: a draw spreads what arrives together.
_NEAR_SHARE = 0.1
_NEAR_TOKENS = 256


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

    def __init__(self) -> None:
        self._booked: dict[int, int] = {}
        self._reported: dict[int, tuple[int, float]] = {}

    def book(self, worker_id: int, tokens: int) -> Booking:
        """A stream starts; hand the booking to `close` when it ends."""
        self._booked[worker_id] = self._booked.get(worker_id, 0) + tokens
        return Booking(worker_id, tokens)

    def grow(self, booking: Booking, tokens: int) -> None:
        """The stream has generated more tokens."""
        booking.tokens += tokens
        self._booked[booking.worker_id] += tokens

    def close(self, booking: Booking) -> None:
        """The stream has ended."""
        left = self._booked[booking.worker_id] - booking.tokens
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


class Binding:
    """A session's last decode worker while it can be used, else the one with the least context.

    At most `capacity` sessions are remembered; the least recently used goes first. A router
    replica knows only the sessions that it served itself.
    """

    def __init__(self, loads: DecodeLoads, rng: Random, capacity: int = 10_000) -> None:
        self._loads = loads
        self._rng = rng
        self._capacity = capacity
        self._sessions: OrderedDict[str, int] = OrderedDict()

    def choose(self, session: str | None, candidates: Sequence[int], now_s: float) -> int:
        """The worker for one request; `candidates` must not be empty."""
        known = self._sessions.get(session) if session else None
        if known is not None and known in candidates:
            return known
        context = {w: self._loads.context_tokens(w, now_s) for w in candidates}
        least = min(context.values())
        near = least + max(_NEAR_TOKENS, round(least * _NEAR_SHARE))
        return self._rng.choice([w for w in candidates if context[w] <= near])

    def note(self, session: str | None, worker_id: int) -> None:
        """The session's stream runs on this worker: its KV will be there next time."""
        if not session:
            return
        self._sessions[session] = worker_id
        self._sessions.move_to_end(session)
        while len(self._sessions) > self._capacity:
            self._sessions.popitem(last=False)
