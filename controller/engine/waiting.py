# SPDX-License-Identifier: Apache-2.0
"""The waiting queue: lower priority value first, then by arrival.

Owns: the order and the sums over it. Does not own: when somebody is admitted.

A preempted request comes back under its own arrival number. Everybody who still waits with the
same priority arrived later (admission is FCFS), so that puts it in front, as in vLLM.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from controller.engine.sequence import Sequence


class WaitingQueue:
    """New and preempted requests in the order in which they are admitted."""

    __slots__ = ("_entries", "new_requests", "new_tokens", "preempted_requests", "preempted_tokens")

    def __init__(self) -> None:
        # Arrival numbers are unique, so the sequence itself is never compared.
        self._entries: list[tuple[int, int, Sequence]] = []
        self.new_requests = 0
        self.new_tokens = 0
        """Prompt tokens of the new requests."""
        self.preempted_requests = 0
        self.preempted_tokens = 0
        """Tokens that the preempted requests recompute."""

    def __len__(self) -> int:
        return len(self._entries)

    def head(self) -> Sequence:
        """The next to be admitted."""
        return self._entries[0][2]

    def push(self, seq: Sequence) -> None:
        """Enqueue at its place."""
        insort(self._entries, (seq.request.priority, seq.order, seq))
        self._count(seq, 1)

    def remove(self, seq: Sequence) -> None:
        """Take one out, wherever it stands."""
        index = bisect_left(self._entries, (seq.request.priority, seq.order))
        del self._entries[index]
        self._count(seq, -1)

    def _count(self, seq: Sequence, sign: int) -> None:
        if seq.preempted:
            self.preempted_requests += sign
            self.preempted_tokens += sign * seq.target
        else:
            self.new_requests += sign
            self.new_tokens += sign * seq.target
