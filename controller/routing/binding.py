# SPDX-License-Identifier: Apache-2.0
"""Which decode worker streams a request, when the router chooses (relay attachment).

Owns: the order of preference, the sessions' memory. Does not own: what workers hold
(controller.runtime.router.binding), which of them are well, sending.

A session's last worker while it can be used; else the one with the longest known prefix of the
prompt; else the one with the least context, of those with room for the prompt. Near-ties are drawn.
A prefix is followed only while it pays: a worker that is busier than the least busy one by more
than the prefix saves is no better, and templates that everybody shares would pile all up on it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from controller.routing.kernels.binding import least_context, near
from controller.types import IntArray


@dataclass(frozen=True, slots=True)
class Candidate:
    """A decode worker that may be chosen; tokens."""

    worker_id: int
    context: int
    """KV tokens bound to it."""
    room: int | None = None
    """KV tokens that it has room for beside those; None: unknown."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The worker, and whether nothing tied the request to it."""

    worker_id: int
    fresh: bool


class Binder:
    """At most `capacity` sessions are remembered; the least recently used goes first.

    A router replica knows only the sessions that it served itself.
    """

    def __init__(self, rng: Random, capacity: int = 10_000) -> None:
        self._rng = rng
        self._capacity = capacity
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self.evicted = 0
        """Sessions forgotten for want of room, so far."""
        least_context(np.zeros(1, np.int64), 0)  # compiled here, not at the first request
        near(0)

    def choose(
        self,
        session: str | None,
        candidates: Sequence[Candidate],
        hits: Mapping[int, int],
        prompt_tokens: int,
    ) -> Bound:
        """The worker for one request; `candidates` must not be empty, `hits` are by worker."""
        known = self._sessions.get(session) if session else None
        if any(each.worker_id == known for each in candidates):
            assert known is not None
            return Bound(known, fresh=False)
        fitting = [
            each
            for each in candidates
            if each.room is None or each.room >= prompt_tokens - hits.get(each.worker_id, 0)
        ] or list(candidates)
        holders = _worth_following(fitting, hits)
        return Bound(self._least(holders or fitting).worker_id, fresh=not holders)

    def _least(self, candidates: Sequence[Candidate]) -> Candidate:
        context: IntArray = np.array([each.context for each in candidates], np.int64)
        return candidates[least_context(context, self._rng.getrandbits(63))]

    def note(self, session: str | None, worker_id: int) -> None:
        """The session's stream runs on this worker: its KV will be there next time."""
        if not session:
            return
        self._sessions[session] = worker_id
        self._sessions.move_to_end(session)
        while len(self._sessions) > self._capacity:
            self._sessions.popitem(last=False)
            self.evicted += 1


def _worth_following(candidates: Sequence[Candidate], hits: Mapping[int, int]) -> list[Candidate]:
    """Those with the longest prefix, unless all are too busy for it to pay."""
    longest = max((hits.get(each.worker_id, 0) for each in candidates), default=0)
    if longest == 0:
        return []
    limit = near(min(each.context for each in candidates)) + longest
    return [
        each
        for each in candidates
        if hits.get(each.worker_id, 0) == longest and each.context <= limit
    ]
