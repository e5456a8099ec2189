# SPDX-License-Identifier: Apache-2.0
"""What a request does with KV blocks: find its prefix, get room, fill blocks, give them back.

Owns: the rules between a sequence and the pool. Does not own: who is admitted or preempted.

- Blocks come as tokens come: `ceil(tokens / block_size)`, all of a chunk's or none.
- A prefix is found block by block along `contents`, full prompt blocks only, and never the
  whole of it: the last token must be computed to get logits. As in vLLM a prompt of whole
  blocks therefore recomputes its last block.
- A prompt block's content is written, and a full one registered, when the step that computed
  it ends (vLLM registers when it schedules; we never offer what is not there yet). Generated
  tokens have no content in this version: their blocks hold 0 and are never registered, so a
  conversation's next round finds the earlier prompts but not the earlier answers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from controller.engine.blocks import BlockPool
from controller.engine.sequence import Sequence
from controller.engine.values import CacheEvent, EngineSpec


class KvManager:
    """The blocks of one engine as its sequences see them."""

    __slots__ = ("_block_size", "_pool", "_prefix_cache")

    def __init__(self, spec: EngineSpec) -> None:
        self._block_size = spec.block_size
        self._prefix_cache = spec.prefix_cache
        self._pool = BlockPool(spec.num_blocks)

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated."""
        return self._pool.free_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens need."""
        return -(-tokens // self._block_size)

    def find_prefix(self, seq: Sequence) -> list[int]:
        """Cached blocks for the start of the sequence; takes nothing yet."""
        if not self._prefix_cache:
            return []
        limit = min(seq.target - 1, seq.request.prompt_tokens) // self._block_size
        return self._pool.lookup(seq.request.contents, limit)

    def count_prefix(self, contents: Seq[int], tokens: int) -> int:
        """Cached tokens among the first `tokens` of a prompt, whole blocks."""
        if not self._prefix_cache:
            return 0
        return len(self._pool.lookup(contents, tokens // self._block_size)) * self._block_size

    def admit(self, seq: Sequence, hits: list[int], tokens: int, watermark: int = 0) -> bool:
        """Give a sequence the found prefix and room for its first `tokens`; all or nothing.

        `watermark` blocks must stay free.
        """
        new = self.blocks_for(tokens) - len(hits)
        if not self._pool.can_take(hits, new + watermark):
            return False
        self._pool.share(hits)
        seq.blocks = hits + self._pool.allocate(new)
        seq.capacity = len(seq.blocks) * self._block_size
        seq.computed = len(hits) * self._block_size
        seq.settled_blocks = seq.registered_blocks = len(hits)
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Make room for `tokens` more computed tokens; all or nothing."""
        new = self.blocks_for(seq.computed + tokens) - len(seq.blocks)
        if new <= 0:
            return True
        if new > self._pool.free_blocks:
            return False
        seq.blocks += self._pool.allocate(new)
        seq.capacity = len(seq.blocks) * self._block_size
        return True

    def settle_pull(self, seq: Sequence, contents: Seq[int]) -> None:
        """Fill blocks with what a pull brought: all but the last prompt token, or the history."""
        first = seq.settled_blocks
        for block_id, content in zip(seq.blocks[first:], contents, strict=False):
            self._pool.write(block_id, content)
        if seq.read_pending:
            seq.computed = seq.read_pending
            seq.settled_blocks = seq.computed // self._block_size
        else:
            seq.computed = seq.request.prompt_tokens - 1
            # A last block that holds only the last token is computed here all the same.
            seq.settled_blocks = max(first, self.blocks_for(seq.computed))
        self._register(seq)

    def settle(self, seq: Sequence) -> None:
        """Write and register the prompt blocks that `seq.computed` covers by now."""
        request = seq.request
        if seq.computed >= request.prompt_tokens:
            done = len(request.contents)
        else:
            done = seq.computed // self._block_size
        for index in range(seq.settled_blocks, done):
            self._pool.write(seq.blocks[index], request.contents[index])
        seq.settled_blocks = max(seq.settled_blocks, done)
        self._register(seq)

    def free(self, blocks: Seq[int]) -> None:
        """Give blocks back; they keep what they hold until somebody else gets them."""
        self._pool.free(blocks)

    def contents(self, block_ids: Seq[int]) -> tuple[int, ...]:
        """What blocks hold now, whoever has them."""
        return tuple(self._pool.content(block_id) for block_id in block_ids)

    def take_events(self) -> list[CacheEvent]:
        """Changes of the prefix cache since the last call."""
        return self._pool.take_events()

    def _register(self, seq: Sequence) -> None:
        if not self._prefix_cache:
            return
        request = seq.request
        full = min(seq.computed, request.prompt_tokens) // self._block_size
        for index in range(seq.registered_blocks, full):
            parent = request.contents[index - 1] if index else None
            self._pool.register(
                seq.blocks[index], request.contents[index], parent, index, request.request_id
            )
        seq.registered_blocks = max(seq.registered_blocks, full)
