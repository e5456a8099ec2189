# SPDX-License-Identifier: Apache-2.0
"""Blocks of finished prefill legs, pinned until the decode side has them or a lease ends.

Owns: who is pinned, until when, and how many distinct blocks that is. Does not own: the blocks
(kv.py). A lease that ends at t is gone at t, whether or not `Engine.expire` ran yet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Pin:
    blocks: tuple[int, ...]
    expires_s: float


class Leases:
    """The pinned requests of one engine."""

    __slots__ = ("_pins", "_users")

    def __init__(self) -> None:
        self._pins: dict[str, _Pin] = {}
        # Pinned prompts may share a prefix; counting users keeps the number of distinct blocks.
        self._users: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._pins

    @property
    def distinct_blocks(self) -> int:
        """Blocks that at least one pinned request holds."""
        return len(self._users)

    def blocks(self, request_id: str) -> tuple[int, ...] | None:
        """A pinned request's blocks in prompt order."""
        pin = self._pins.get(request_id)
        return None if pin is None else pin.blocks

    def pin(self, request_id: str, blocks: tuple[int, ...], expires_s: float) -> None:
        """Start a lease."""
        self._pins[request_id] = _Pin(blocks, expires_s)
        for block_id in blocks:
            self._users[block_id] = self._users.get(block_id, 0) + 1

    def holds(self, request_id: str, now_s: float) -> bool:
        """Whether a lease exists and has not ended."""
        pin = self._pins.get(request_id)
        return pin is not None and now_s < pin.expires_s

    def renew(self, request_id: str, expires_s: float) -> None:
        """Move the end of a lease."""
        self._pins[request_id] = _Pin(self._pins[request_id].blocks, expires_s)

    def drop(self, request_id: str) -> tuple[int, ...]:
        """End a lease; returns the blocks to free."""
        blocks = self._pins.pop(request_id).blocks
        for block_id in blocks:
            users = self._users[block_id] - 1
            if users:
                self._users[block_id] = users
            else:
                del self._users[block_id]
        return blocks

    def ended(self, now_s: float) -> list[str]:
        """Requests whose lease has ended, earliest first."""
        over = [(pin.expires_s, rid) for rid, pin in self._pins.items() if pin.expires_s <= now_s]
        return [request_id for _expires_s, request_id in sorted(over)]

    def earliest_s(self) -> float | None:
        """The next end of a lease."""
        return min((pin.expires_s for pin in self._pins.values()), default=None)
