# SPDX-License-Identifier: Apache-2.0
"""Which prompts a worker has seen: an index of our own, where Dynamo's routing keeps none.

Owns: block checksums of prompts, the longest known prefix of a prompt on each worker, forgetting.
Does not own: what is made of a hit (binding.py), the engines' caches: they may have evicted what
is still known here, so each worker's share is bounded like its KV and the oldest goes first.
"""

from __future__ import annotations

import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

BLOCK_TOKENS = 64


def block_sums(token_ids: Sequence[int]) -> array[int]:
    """Chained checksums of a prompt's whole blocks: equal sums mean an equal prefix up to there."""
    raw = array("I", token_ids).tobytes()
    stride = BLOCK_TOKENS * 4
    chain = 0
    sums = array("I")
    for start in range(0, len(raw) - stride + 1, stride):
        chain = zlib.crc32(raw[start : start + stride], chain)
        sums.append(chain)
    return sums


class PromptIndex:
    """Blocks by worker, at most `blocks_a_worker` each; the least recently used go first."""

    def __init__(self, blocks_a_worker: int = 4096) -> None:
        self.blocks_a_worker = blocks_a_worker
        self.evicted = 0
        """Blocks forgotten for want of room, so far."""
        self._known: dict[int, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def note(self, worker_id: int, sums: Sequence[int]) -> None:
        """The worker has this prompt's KV now. Its head counts as used last: it goes last."""
        known = self._known.setdefault(worker_id, OrderedDict())
        for each in reversed(sums):
            known[each] = None
            known.move_to_end(each)
        while len(known) > self.blocks_a_worker:
            known.popitem(last=False)
            self.evicted += 1

    def hits(self, sums: Sequence[int]) -> dict[int, int]:
        """Tokens of the longest known prefix, by worker; workers without one are not there."""
        found: dict[int, int] = {}
        if not sums:
            return found
        for worker_id, known in self._known.items():
            length = 0
            while length < len(sums) and sums[length] in known:
                length += 1
            if length:
                found[worker_id] = length * BLOCK_TOKENS
        return found

    def forget_all_but(self, live: Iterable[int]) -> None:
        """Drop workers that have left."""
        alive = set(live)
        for worker_id in [w for w in self._known if w not in alive]:
            del self._known[worker_id]
