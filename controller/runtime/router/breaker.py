# SPDX-License-Identifier: Apache-2.0
"""Workers that just failed are left alone for a while, longer after each failure in a row.

A killed worker stays listed until its discovery lease ends; without this every request would
try it first. After the pause the next request is the probe, and one success closes the breaker.
"""

from __future__ import annotations

from collections.abc import Iterable

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0


class Breaker:
    """Failures in a row per worker; times are wall seconds."""

    def __init__(self) -> None:
        self._failures: dict[int, tuple[int, float]] = {}

    def failed(self, worker_id: int, now_s: float) -> None:
        """The worker failed at being reached or at answering (not: refused bad input)."""
        count = self._failures.get(worker_id, (0, 0.0))[0] + 1
        pause_s = min(_FIRST_PAUSE_S * 2 ** (count - 1), _LONGEST_PAUSE_S)
        self._failures[worker_id] = (count, now_s + pause_s)

    def succeeded(self, worker_id: int) -> None:
        """The worker answered."""
        self._failures.pop(worker_id, None)

    def trusts(self, worker_id: int, now_s: float) -> bool:
        """Whether one worker is not being left alone."""
        return self._failures.get(worker_id, (0, 0.0))[1] <= now_s

    def usable(self, live: Iterable[int], now_s: float) -> tuple[int, ...]:
        """The live workers that are not being left alone; forgets the dead."""
        alive = tuple(live)
        if not self._failures:
            return alive
        for worker_id in [w for w in self._failures if w not in alive]:
            del self._failures[worker_id]
        return tuple(w for w in alive if self._failures.get(w, (0, 0.0))[1] <= now_s)
