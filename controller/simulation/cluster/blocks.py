# SPDX-License-Identifier: Apache-2.0
"""KV blocks in runs: the free list of each worker, and the runs that the prefix table offers.

Owns: the same law as controller.engine.blocks, block by block, without touching single blocks.
Does not own: what a request finds or registers (prefix.py), who gets blocks (the engine kernels).

A *holding* is a run of consecutive blocks [low, high) of one segment of text (prefixes.py) on one
worker, with one number of users. Holdings without a user stand in the worker's free list in the
order in which the law would list their blocks; a request frees the tail of its prompt first, so a
holding is eaten from its high end. Blocks that nobody can find (generated tokens, the started
last block of a prompt) are holdings of segment -1, and neighbours of that kind are one entry.
What is split off a holding stays reachable through `rest` for those who hold all of it.
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.compiled import entry, kernel
from controller.simulation.cluster.state import (
    HOLD_FREE,
    HOLDS_LEFT,
    REF_FREE,
    REFS_LEFT,
    SHARED_SEGMENTS,
    State,
)

PRIVATE = -1


@kernel
def bucket_of(segment: int, w: int, buckets: int) -> int:
    """Where the prefix table lists the holdings of a segment on a worker."""
    mixed = segment * -7046029254386353131 + w * -4417276706812531889
    return int((mixed >> 33) & (buckets - 1))


@kernel
def front_word(segment: int, blocks: int) -> int:
    """How `front` remembers that a worker holds the leading `blocks` of a shared segment.

    Row: the last bits of the segment. Another segment with these takes its place.
    """
    return segment << 32 | blocks


@kernel
def changed(s: State, segment: int, w: int) -> None:
    """Worker w holds other blocks of a segment than before: look again."""
    if segment >= s.ctl[SHARED_SEGMENTS]:
        return
    row = segment & (s.front.shape[0] - 1)
    if s.front[row, w] >> 32 == segment:
        s.front[row, w] = -1


@kernel
def new_holding(s: State, segment: int, w: int, low: int, high: int) -> int:
    """Not in any list yet. The main loop sees to it that one is left."""
    h = s.ctl[HOLD_FREE]
    holding = s.hold[h]
    s.ctl[HOLD_FREE] = holding.next
    s.ctl[HOLDS_LEFT] -= 1
    holding.segment = segment
    holding.worker = w
    holding.low = low
    holding.high = high
    holding.users = 0
    holding.prev = holding.next = holding.chain = holding.rest = -1
    return int(h)


@kernel
def drop_holding(s: State, h: int) -> None:
    s.hold[h].next = s.ctl[HOLD_FREE]
    s.ctl[HOLD_FREE] = h
    s.ctl[HOLDS_LEFT] += 1


@kernel
def append_free(s: State, w: int, h: int) -> None:
    """To the end of the free list: used last, evicted last. The caller counts."""
    worker = s.wrk[w]
    tail = worker.lru_tail
    s.hold[h].prev, s.hold[h].next = tail, -1
    if tail >= 0:
        s.hold[tail].next = h
    else:
        worker.lru_head = h
    worker.lru_tail = h


@kernel
def insert_free(s: State, w: int, h: int, before: int) -> None:
    """In front of a holding of the free list."""
    ahead = s.hold[before].prev
    s.hold[h].prev, s.hold[h].next = ahead, before
    s.hold[before].prev = h
    if ahead >= 0:
        s.hold[ahead].next = h
    else:
        s.wrk[w].lru_head = h


@kernel
def remove_free(s: State, w: int, h: int) -> None:
    worker = s.wrk[w]
    ahead, behind = s.hold[h].prev, s.hold[h].next
    if ahead >= 0:
        s.hold[ahead].next = behind
    else:
        worker.lru_head = behind
    if behind >= 0:
        s.hold[behind].prev = ahead
    else:
        worker.lru_tail = ahead


@kernel
def give_private(s: State, w: int, count: int) -> None:
    """Free blocks that nobody can find."""
    if count <= 0:
        return
    worker = s.wrk[w]
    worker.free += count
    tail = worker.lru_tail
    if tail >= 0 and s.hold[tail].segment == PRIVATE:
        s.hold[tail].high += count
    else:
        append_free(s, w, new_holding(s, PRIVATE, w, 0, count))


@kernel
def take(s: State, w: int, count: int) -> None:
    """Hand out the blocks at the head of the free list; `count` of them must be there."""
    worker = s.wrk[w]
    worker.free -= count
    while count > 0:
        h = worker.lru_head
        size = s.hold[h].high - s.hold[h].low
        if size > count:
            s.hold[h].high -= count
            if s.hold[h].segment != PRIVATE:
                changed(s, s.hold[h].segment, w)
            return
        count -= size
        remove_free(s, w, h)
        if s.hold[h].segment != PRIVATE:
            forget(s, h)
        drop_holding(s, h)


@kernel
def list_holding(s: State, h: int) -> None:
    """Offer a holding in the prefix table, behind all that were registered earlier."""
    holding = s.hold[h]
    s.live[holding.segment] += 1
    changed(s, holding.segment, holding.worker)
    b = bucket_of(holding.segment, holding.worker, s.bucket.size)
    at = s.bucket[b]
    if at < 0:
        s.bucket[b] = h
        return
    while s.hold[at].chain >= 0:
        at = s.hold[at].chain
    s.hold[at].chain = h


@entry
def relist(old: Any, new: Any, hold: Any) -> None:
    """Move a prefix table into an empty one of another size; equal keys keep their order."""
    for b in range(old.size):
        h = old[b]
        while h >= 0:
            after = hold[h].chain
            hold[h].chain = -1
            place = bucket_of(hold[h].segment, hold[h].worker, new.size)
            at = new[place]
            if at < 0:
                new[place] = h
            else:
                while hold[at].chain >= 0:
                    at = hold[at].chain
                hold[at].chain = h
            h = after


@kernel
def forget(s: State, h: int) -> None:
    """Take a holding out of the prefix table."""
    holding = s.hold[h]
    s.live[holding.segment] -= 1
    changed(s, holding.segment, holding.worker)
    b = bucket_of(holding.segment, holding.worker, s.bucket.size)
    at = s.bucket[b]
    if at == h:
        s.bucket[b] = holding.chain
        return
    while s.hold[at].chain != h:
        at = s.hold[at].chain
    s.hold[at].chain = holding.chain


@kernel
def split(s: State, h: int, at: int) -> int:
    """Cut a holding at block `at`; returns the part behind. Both keep place, users and age."""
    holding = s.hold[h]
    behind = new_holding(s, holding.segment, holding.worker, at, holding.high)
    part = s.hold[behind]
    part.users = holding.users
    part.rest = holding.rest
    part.chain = holding.chain
    holding.rest = behind
    holding.chain = behind
    holding.high = at
    s.live[holding.segment] += 1
    if not holding.users:
        insert_free(s, holding.worker, behind, h)
    return behind


@kernel
def refer(s: State, r: int, h: int) -> None:
    """Let request r use all of a holding; the caller counts users."""
    node = s.ctl[REF_FREE]
    s.ctl[REF_FREE] = s.ref[node].next
    s.ctl[REFS_LEFT] -= 1
    s.ref[node].holding = h
    s.ref[node].high = s.hold[h].high
    s.ref[node].next = s.req[r].refs
    s.req[r].refs = node


@kernel
def release(s: State, w: int, node: int) -> None:
    """Give back all that a list of references holds, tail of the prompt first."""
    while node >= 0:
        _release_run(s, w, s.ref[node].holding, s.ref[node].high)
        after = s.ref[node].next
        s.ref[node].next = s.ctl[REF_FREE]
        s.ctl[REF_FREE] = node
        s.ctl[REFS_LEFT] += 1
        node = after


@kernel
def _release_run(s: State, w: int, first: int, end: int) -> None:
    """The pieces of one reference, last piece first."""
    while True:
        h = first
        while s.hold[h].high < end:
            h = s.hold[h].rest
        holding = s.hold[h]
        holding.users -= 1
        if not holding.users:
            append_free(s, w, h)
            s.wrk[w].free += holding.high - holding.low
        if h == first:
            return
        end = holding.low


@kernel
def worker_blocks(worker: Any, tokens: int) -> int:
    """Blocks that `tokens` tokens need."""
    return int((tokens + worker.block_size - 1) // worker.block_size)
