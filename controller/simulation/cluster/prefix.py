# SPDX-License-Identifier: Apache-2.0
"""What a request finds in a worker's prefix cache, takes from it and adds to it.

Owns: the walk along the segments of a prompt (prefixes.py). Does not own: the runs themselves
(blocks.py), when any of this happens.

The law is controller.engine.kv's: full prompt blocks only, leading ones only, the copy that was
registered first, never the whole of what must be computed.
"""

from __future__ import annotations

from controller.simulation.cluster.blocks import (
    bucket_of,
    changed,
    front_word,
    list_holding,
    new_holding,
    refer,
    remove_free,
    split,
)
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.state import BLOCK_TOKENS, SHARED_SEGMENTS, State

FAR = 1 << 40


@kernel
def path_of(s: State, r: int, block_size: int) -> tuple[int, int, int, int]:
    """The shared part of a prompt: its path from `a` up to `b`, blocks an id, blocks it covers.

    Later blocks lie in the private segment of the request's stream.
    """
    if s.ctl[SHARED_SEGMENTS] == 0:
        return 0, 0, 1, 0
    head = s.req[r].head
    a, b = s.path_start[head], s.path_start[head + 1]
    if a == b:
        return 0, 0, 1, 0
    per_id = s.ctl[BLOCK_TOKENS] // block_size
    known = min(s.path[b - 1, 1] * per_id, s.req[head].prompt // block_size)
    return int(a), int(b), int(per_id), int(known)


@kernel
def span(s: State, r: int, k: int, a: int, b: int, per_id: int, known: int) -> tuple[int, int, int]:
    """Segment k of the path (k = b: the private one): segment, its first block, its end."""
    if k == b:
        return int(s.ctl[SHARED_SEGMENTS] + s.req[r].stream), known, FAR
    start = s.path[k - 1, 1] * per_id if k > a else 0
    return int(s.path[k, 0]), int(start), int(min(s.path[k, 1] * per_id, known))


@kernel
def _origin(first: int, k: int, b: int) -> int:
    """Block of the prompt at which a segment's own count begins (the private one counts all)."""
    return 0 if k == b else first


@kernel
def _cover(s: State, w: int, segment: int, block: int) -> tuple[int, int]:
    """The first registered holding with this block, and up to where it is the first; or -1."""
    at = s.bucket[bucket_of(segment, w, s.bucket.size)]
    stop = FAR
    while at >= 0:
        holding = s.hold[at]
        if holding.segment == segment and holding.worker == w:
            if holding.low <= block < holding.high:
                return int(at), int(min(stop, holding.high))
            if holding.low > block:
                stop = min(stop, holding.low)
        at = holding.chain
    return -1, 0


@kernel
def _front(s: State, segment: int, w: int) -> int:
    """How many leading blocks of a shared segment worker w's cache holds."""
    row = segment & (s.front.shape[0] - 1)
    word = s.front[row, w]
    if word >> 32 == segment:
        return int(word & 0xFFFFFFFF)
    blocks = 0
    while True:
        h, stop = _cover(s, w, segment, blocks)
        if h < 0:
            break
        blocks = stop
    s.front[row, w] = front_word(segment, blocks)
    return blocks


@kernel
def hits(s: State, w: int, r: int, limit: int) -> int:
    """How many of the first `limit` blocks of the prompt worker w's cache holds."""
    if not s.wrk[w].prefix_cache:
        return 0
    a, b, per_id, known = path_of(s, r, s.wrk[w].block_size)
    return hits_along(s, w, r, limit, a, b, per_id, known)


@kernel
def hits_along(
    s: State, w: int, r: int, limit: int, a: int, b: int, per_id: int, known: int
) -> int:
    """`hits` where the path in the worker's blocks is known, and that it has a cache."""
    at = 0
    for k in range(a, b + 1):
        segment, first, end = span(s, r, k, a, b, per_id, known)
        if s.live[segment] == 0 and end > at:
            return at
        end = min(end, limit)
        if k < b and at < end:
            at = min(first + _front(s, segment, w), end)
            if at < end:
                return at
        while at < end:
            h, stop = _cover(s, w, segment, at)
            if h < 0:
                return at
            at = min(stop, end)
    return at


@kernel
def find(s: State, w: int, r: int, limit: int) -> tuple[int, int, int]:
    """As `hits`, with the pieces in `scratch`: (blocks, pieces, blocks that nobody uses).

    A piece is three words: holding, and the run [low, high) of it, in blocks of the segment.
    """
    if not s.wrk[w].prefix_cache:
        return 0, 0, 0
    a, b, per_id, known = path_of(s, r, s.wrk[w].block_size)
    at, pieces, unused = 0, 0, 0
    for k in range(a, b + 1):
        segment, first, end = span(s, r, k, a, b, per_id, known)
        if s.live[segment] == 0 and end > at:
            return at, pieces, unused
        end = min(end, limit)
        origin = _origin(first, k, b)
        while at < end:
            h, stop = _cover(s, w, segment, at - origin)
            if h < 0:
                return at, pieces, unused
            stop = min(stop + origin, end)
            s.scratch[3 * pieces] = h
            s.scratch[3 * pieces + 1] = at - origin
            s.scratch[3 * pieces + 2] = stop - origin
            if not s.hold[h].users:
                unused += stop - at
            pieces += 1
            at = stop
    return at, pieces, unused


@kernel
def share_found(s: State, w: int, r: int, pieces: int) -> None:
    """Let request r use what `find` has put into `scratch`."""
    for i in range(pieces):
        h, low, high = s.scratch[3 * i], s.scratch[3 * i + 1], s.scratch[3 * i + 2]
        while s.hold[h].high <= low:  # an earlier piece has split it
            h = s.hold[h].rest
        if s.hold[h].low < low:
            h = split(s, h, low)
        if s.hold[h].high > high:
            split(s, h, high)
        holding = s.hold[h]
        if not holding.users:
            remove_free(s, w, h)
            s.wrk[w].free -= high - low
        holding.users += 1
        refer(s, r, h)


@kernel
def register(s: State, w: int, r: int, full: int) -> None:
    """Offer the prompt's blocks up to `full`, which r has computed, under their identities."""
    done = s.req[r].registered
    if full <= done or not s.wrk[w].prefix_cache:
        return
    a, b, per_id, known = path_of(s, r, s.wrk[w].block_size)
    for k in range(a, b + 1):
        segment, first, end = span(s, r, k, a, b, per_id, known)
        end = min(end, full)
        if end > done:
            origin = _origin(first, k, b)
            _register_run(s, w, r, segment, done - origin, end - origin)
            done = end
    s.req[r].registered = full


@kernel
def _register_run(s: State, w: int, r: int, segment: int, low: int, high: int) -> None:
    node = s.req[r].refs
    if node >= 0:
        h = s.ref[node].holding
        holding = s.hold[h]
        grows = holding.segment == segment and holding.high == low and holding.users == 1
        # With another copy about, age decides which one is found: then the runs stay apart.
        if grows and s.ref[node].high == low and _copies(s, w, segment) == 1:
            holding.high = high
            s.ref[node].high = high
            changed(s, segment, w)
            return
    h = new_holding(s, segment, w, low, high)
    s.hold[h].users = 1
    list_holding(s, h)
    refer(s, r, h)


@kernel
def _copies(s: State, w: int, segment: int) -> int:
    """Holdings of a segment on a worker, counted up to 2."""
    at = s.bucket[bucket_of(segment, w, s.bucket.size)]
    count = 0
    while at >= 0 and count < 2:
        if s.hold[at].segment == segment and s.hold[at].worker == w:
            count += 1
        at = s.hold[at].chain
    return count
