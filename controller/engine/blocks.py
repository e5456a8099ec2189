# SPDX-License-Identifier: Apache-2.0
"""The KV blocks of one engine: reference counts, free list, prefix table.

Owns: which block is used by how many, what each block holds, which contents can be found.
Does not own: which request has which blocks (kv.py).

As vLLM v1's BlockPool: a block with no user goes to the end of one LRU free list and keeps
what it holds until it is handed out again, so the free list is the prefix cache's eviction
order. Two things are kept apart per block: its `key`, under which the prefix table offers it,
and its `content`, what really lies in it. They differ after a decode leg pulled from a source
whose blocks had been reused: vLLM then offers the wrong KV under the right hash, and so do we.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from controller.engine.values import CacheEvent

NOTHING = 0
"""Content of a block that holds no prompt."""


class BlockPool:
    """All blocks of one engine. Callers check `can_take` before they allocate."""

    __slots__ = ("_content", "_events", "_free", "_key", "_refs", "_table")

    def __init__(self, num_blocks: int) -> None:
        self._refs = [0] * num_blocks
        self._content = [NOTHING] * num_blocks
        self._key: list[int | None] = [None] * num_blocks
        # Two requests may compute the same prefix at the same time: every copy counts, and
        # the content is gone only with the last one.
        self._table: dict[int, list[int]] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._events: list[CacheEvent] = []

    @property
    def free_blocks(self) -> int:
        """Blocks without a user, cached ones included."""
        return len(self._free)

    def content(self, block_id: int) -> int:
        """What a block holds now."""
        if block_id < 0:
            raise IndexError(f"block id {block_id}")
        return self._content[block_id]

    def write(self, block_id: int, content: int) -> None:
        """Fill a block."""
        self._content[block_id] = content

    def lookup(self, keys: Sequence[int], limit: int) -> list[int]:
        """Blocks for the leading run of the first `limit` keys that can be found."""
        found: list[int] = []
        for index in range(limit):
            copies = self._table.get(keys[index])
            if copies is None:
                break
            found.append(copies[0])
        return found

    def can_take(self, hits: Iterable[int], new_blocks: int) -> bool:
        """Whether `hits` can be shared and `new_blocks` allocated beside them."""
        refs = self._refs
        # A hit that nobody uses lies on the free list: sharing it takes it from there.
        return new_blocks + sum(1 for block_id in hits if not refs[block_id]) <= len(self._free)

    def share(self, hits: Iterable[int]) -> None:
        """Add a user to found blocks."""
        for block_id in hits:
            if not self._refs[block_id]:
                del self._free[block_id]
            self._refs[block_id] += 1

    def allocate(self, count: int) -> list[int]:
        """Hand out the least recently used free blocks; what they held is gone."""
        taken: list[int] = []
        for _ in range(count):
            block_id, _none = self._free.popitem(last=False)
            self._unregister(block_id)
            self._content[block_id] = NOTHING
            self._refs[block_id] = 1
            taken.append(block_id)
        return taken

    def free(self, block_ids: Sequence[int]) -> None:
        """Remove a user; the tail of a prompt goes first, so that it is evicted first."""
        for block_id in reversed(block_ids):
            refs = self._refs[block_id] - 1
            if refs < 0:
                raise RuntimeError(f"block {block_id} freed twice")
            self._refs[block_id] = refs
            if not refs:
                self._free[block_id] = None

    def register(
        self, block_id: int, key: int, parent: int | None, index: int, request_id: str
    ) -> None:
        """Offer a block in use under a key; the rest describes it to whoever reads events."""
        self._key[block_id] = key
        copies = self._table.setdefault(key, [])
        copies.append(block_id)
        if len(copies) == 1:
            self._events.append(CacheEvent(True, block_id, key, parent, index, request_id))

    def take_events(self) -> list[CacheEvent]:
        """Changes of the table since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _unregister(self, block_id: int) -> None:
        key = self._key[block_id]
        if key is None:
            return
        self._key[block_id] = None
        copies = self._table[key]
        copies.remove(block_id)
        if not copies:
            del self._table[key]
            self._events.append(CacheEvent(False, block_id, key, None, -1, None))
