# SPDX-License-Identifier: Apache-2.0
"""KV that prefill workers keep pinned for hand-overs whose decode leg has not begun.

Owns: the books of it, by worker. Does not own: releasing at the engine (calls.py, streams.py), the
engine's lease itself. A relay says when a decode leg has begun; a broker never learns of it, so
there a hand-over counts for as long as its transfer is predicted to take.
"""

from __future__ import annotations

from collections import OrderedDict


class Pinned:
    """Tokens pinned at each prefill worker, one lease a request; seconds on the router's clock."""

    def __init__(self) -> None:
        self._leases: OrderedDict[str, tuple[int, int, float]] = OrderedDict()
        self._tokens: dict[int, int] = {}

    def pin(self, request_id: str, worker_id: int, tokens: int, until_s: float) -> None:
        """A hand-over was answered; without word its lease ends at `until_s`."""
        self.unpin(request_id)
        self._leases[request_id] = (worker_id, tokens, until_s)
        self._tokens[worker_id] = self._tokens.get(worker_id, 0) + tokens

    def unpin(self, request_id: str) -> None:
        """Its decode leg has begun or it was released; any other id is no matter."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return
        worker_id, tokens, _ = lease
        left = self._tokens[worker_id] - tokens
        if left:
            self._tokens[worker_id] = left
        else:
            del self._tokens[worker_id]

    def sweep(self, now_s: float) -> int:
        """Drop the leases that have ended; returns how many."""
        ended = [name for name, (_, _, until_s) in self._leases.items() if until_s <= now_s]
        for name in ended:
            self.unpin(name)
        return len(ended)

    def tokens(self, worker_id: int) -> int:
        """Pinned at one worker."""
        return self._tokens.get(worker_id, 0)

    def total_tokens(self) -> int:
        """Pinned at all workers."""
        return sum(self._tokens.values())

    def __len__(self) -> int:
        return len(self._leases)
