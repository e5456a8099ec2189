# SPDX-License-Identifier: Apache-2.0
"""Which router replica owns a worker's queue: rendezvous hashing, the same answer at every replica.

Owns: the rule. Does not own: who is alive (controller.runtime.replicas). When a replica comes or
goes, only its own share of the queues changes hands (Thaler, Ravishankar 1998).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b


def owner(unit_id: int, replicas: Iterable[str]) -> str | None:
    """The replica with the highest weight for this queue; None without replicas."""
    return max(replicas, key=lambda name: _weight(unit_id, name), default=None)


class Owners:
    """Owners under one membership, remembered: asked for with every prefill."""

    def __init__(self, replicas: Sequence[str]) -> None:
        self.replicas = tuple(sorted(replicas))
        self._known: dict[int, str | None] = {}

    def of(self, unit_id: int) -> str | None:
        """Owner of a queue."""
        if unit_id not in self._known:
            self._known[unit_id] = owner(unit_id, self.replicas)
        return self._known[unit_id]


def _weight(unit_id: int, replica: str) -> bytes:
    return blake2b(f"{unit_id:x} {replica}".encode(), digest_size=8).digest()
