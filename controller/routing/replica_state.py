# SPDX-License-Identifier: Apache-2.0
"""What router replicas tell each other of their books, and how that is put together. Pure.

Owns: the messages, which of them count, sums over replicas. Does not own: carrying them
(controller.runtime.replicas), the books.

A state is whole, not a difference: one that is lost or late does no harm beyond its age. It says
times as ages, since replicas on several machines share no clock; the way takes about a millisecond.
States carry a rising number, so an old one never replaces a newer; a replica that restarts has
another name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

MOST_TASKS = 64
"""Tasks of one queue that are told apart; the rest is told as one sum."""


class TaskState(msgspec.Struct, frozen=True, array_like=True):
    """One prefill at a worker."""

    asked_by: str
    """The replica whose request it is."""
    uncached: int
    predicted_s: float
    due_in_s: float
    arrived_ago_s: float
    urgency: int
    flies: bool
    """It was sent to the engine."""


class LaneState(msgspec.Struct, frozen=True, array_like=True):
    """All that waits for or runs on one (worker, rank), as its owner knows it."""

    worker_id: int
    rank: int
    tasks: tuple[TaskState, ...]


class DecodeBooks(msgspec.Struct, frozen=True, array_like=True):
    """What one replica has placed on one decode worker."""

    worker_id: int
    local_s: float
    """Predicted time of its local prefills that have not ended."""
    locals: int
    held_tokens: int
    """KV tokens of its streams."""


class ReplicaState(msgspec.Struct, frozen=True, array_like=True):
    """One replica's books at one instant."""

    replica: str
    number: int
    lanes: tuple[LaneState, ...] = ()
    decode: tuple[DecodeBooks, ...] = ()
    sessions: tuple[tuple[str, int], ...] = ()
    """Sessions bound since the last state, with their decode worker (relay)."""


def encode(state: ReplicaState) -> bytes:
    """For the wire."""
    return msgspec.msgpack.encode(state)


def decode(raw: bytes) -> ReplicaState | None:
    """From the wire; None for what is no state (another version, rubbish)."""
    try:
        return msgspec.msgpack.decode(raw, type=ReplicaState)
    except (msgspec.DecodeError, UnicodeError):
        return None


def shortened(tasks: list[TaskState]) -> tuple[TaskState, ...]:
    """At most `MOST_TASKS` and one that stands for the rest, which waits behind them."""
    if len(tasks) <= MOST_TASKS:
        return tuple(tasks)
    kept, rest = tasks[:MOST_TASKS], tasks[MOST_TASKS:]
    whole = TaskState(
        asked_by="",
        uncached=sum(each.uncached for each in rest),
        predicted_s=sum(each.predicted_s for each in rest),
        due_in_s=max(each.due_in_s for each in rest),
        arrived_ago_s=min(each.arrived_ago_s for each in rest),
        urgency=min(each.urgency for each in rest),
        flies=False,
    )
    return (*kept, whole)


@dataclass(frozen=True, slots=True)
class _Heard:
    state: ReplicaState
    at_s: float


class RemoteStates:
    """The latest state of each other replica; seconds on this replica's clock."""

    def __init__(self, stale_s: float) -> None:
        """A state older than `stale_s` counts no more: its replica may be gone, or cut off."""
        self._stale_s = stale_s
        self._heard: dict[str, _Heard] = {}

    def take(self, state: ReplicaState, now_s: float) -> bool:
        """A state has come; False: it is older than what is known."""
        known = self._heard.get(state.replica)
        if known is not None and known.state.number >= state.number:
            return False
        self._heard[state.replica] = _Heard(state, now_s)
        return True

    def forget_all_but(self, replicas: Iterable[str]) -> None:
        """Replicas that have left leave no work behind: who asked them has asked elsewhere."""
        kept = set(replicas)
        self._heard = {name: heard for name, heard in self._heard.items() if name in kept}

    def expired(self, now_s: float) -> list[ReplicaState]:
        """Drop and return the states that have become too old."""
        old = [h.state for h in self._heard.values() if now_s - h.at_s > self._stale_s]
        for state in old:
            del self._heard[state.replica]
        return old

    def age_s(self, now_s: float) -> float | None:
        """Age of the oldest state that counts; None without one."""
        return max((now_s - heard.at_s for heard in self._heard.values()), default=None)

    def decode_books(self, now_s: float) -> dict[int, DecodeBooks]:
        """All replicas' books together, by decode worker; prefills have run on meanwhile."""
        sums: dict[int, DecodeBooks] = {}
        for heard in self._heard.values():
            for books in heard.state.decode:
                known = sums.get(books.worker_id, DecodeBooks(books.worker_id, 0.0, 0, 0))
                sums[books.worker_id] = DecodeBooks(
                    books.worker_id,
                    known.local_s + max(0.0, books.local_s - (now_s - heard.at_s)),
                    known.locals + books.locals,
                    known.held_tokens + books.held_tokens,
                )
        return sums
