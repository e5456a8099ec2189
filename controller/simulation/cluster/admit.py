# SPDX-License-Identifier: Apache-2.0
"""Who comes out of a worker's waiting queue into the next step.

Owns: arrival at an engine, first come first served admission of prefills and pulls. Does not own:
the running requests (compose.py), blocks, links.
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.blocks import take, worker_blocks
from controller.simulation.cluster.chunks import capped
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.links import cut_steps, start_pull, start_read
from controller.simulation.cluster.lists import (
    append_prefill,
    append_running,
    push_waiting,
    remove_waiting,
)
from controller.simulation.cluster.prefix import find, share_found
from controller.simulation.cluster.state import CLOCK, READY, State


@kernel
def add_request(s: State, w: int, r: int, leg: int, limit: int, now_s: float) -> None:
    """A leg of request r arrives at worker w; a running step does not see it."""
    worker, q = s.wrk[w], s.req[r]
    q.leg, q.worker, q.limit = leg, w, limit
    q.target = q.ask
    q.generated = q.computed = q.chunk = q.under_way = q.blocks = q.registered = 0
    q.refs = q.cached = -1
    q.order = worker.orders
    worker.orders += 1
    push_waiting(s.req, worker, r)
    # Behind somebody who waits it changes nothing.
    if worker.wait_head == r:
        wake(s, w, now_s)


@kernel
def wake(s: State, w: int, now_s: float) -> None:
    """Something has happened that the worker's next composition must see."""
    worker = s.wrk[w]
    if worker.busy:
        cut_steps(s, w, s.ctl[CLOCK])
    else:
        make_ready(s, w, now_s)


@kernel
def make_ready(s: State, w: int, now_s: float) -> None:
    """The worker composes once all events of this instant are done."""
    worker = s.wrk[w]
    if worker.ready:
        return
    worker.ready = 1
    worker.ready_s = now_s
    at = s.ctl[READY]
    s.ctl[READY] += 1
    while at > 0 and s.ready[at - 1] < w:
        s.ready[at] = s.ready[at - 1]
        at -= 1
    s.ready[at] = w


@kernel
def admit_waiting(s: State, w: int, now_s: float) -> None:
    """Until the first that does not fit."""
    worker = s.wrk[w]
    while (
        worker.waiting > 0
        and worker.budget > 0
        and worker.running + worker.pulling < worker.max_seqs
    ):
        r = worker.wait_head
        q = s.req[r]
        known = min(q.target - 1, q.ask)
        found, pieces, unused = find(s, w, r, known // worker.block_size)
        if q.pull_pending:
            if not _admit_pull(s, w, r, found, pieces, unused, now_s):
                return
        elif q.reads > found * worker.block_size:
            if not _admit_read(s, w, r, found, pieces, unused, now_s):
                return
        elif not _admit_prefill(s, w, r, found, pieces, unused, now_s):
            return


@kernel
def _fits(worker: Any, blocks: int) -> bool:
    """Whether blocks can be taken; a watermark is kept free, except in an empty engine."""
    kept = worker.watermark if worker.running + worker.pulling > 0 else 0
    return bool(blocks + kept <= worker.free)


@kernel
def _enter(s: State, w: int, r: int, found: int, pieces: int, tokens: int) -> None:
    """Blocks for the first `tokens` tokens, `found` blocks of them out of the prefix cache."""
    worker, q = s.wrk[w], s.req[r]
    share_found(s, w, r, pieces)
    blocks = worker_blocks(worker, tokens)
    take(s, w, blocks - found)
    q.blocks, q.registered = blocks, found
    q.computed = found * worker.block_size
    remove_waiting(s.req, worker, r)
    if q.cached < 0:
        q.cached = q.computed
        worker.hit_tokens += q.computed
        worker.query_tokens += q.ask


@kernel
def _admit_prefill(
    s: State, w: int, r: int, found: int, pieces: int, unused: int, now_s: float
) -> bool:
    worker, q = s.wrk[w], s.req[r]
    history = found * worker.block_size
    q.chunks_done = 0
    tokens = min(capped(q, q.target - history), worker.budget)
    # The rest of the prompt may have to be free as well, though it is not taken yet.
    room = q.target if worker.reserve_prompt else history + tokens
    if not _fits(worker, worker_blocks(worker, room) - found + unused):
        # With fewer hits a chunk that the budget cuts short ends earlier: it may fit then.
        # Or what was found has to be read instead.
        cut = history + tokens < q.target
        worker.recheck = 1 if unused > 0 and (cut or q.reads > 0) else 0
        return False
    q.reads = 0
    _enter(s, w, r, found, pieces, history + tokens)
    append_running(s.req, worker, r)
    append_prefill(s.req, worker, r)
    if q.started_s < 0.0:
        q.started_s = -1.0 if worker.lead else now_s
        q.hit_tokens = history
    add_chunk(worker, q, tokens)
    return True


@kernel
def add_chunk(worker: Any, q: Any, tokens: int) -> None:
    """Prompt tokens of a running request in the step that is being composed."""
    q.chunk = tokens
    q.chunks_done += 1
    worker.budget -= tokens
    worker.chunk += tokens
    worker.pairs += tokens * (q.computed + 0.5 * tokens)


@kernel
def _admit_read(
    s: State, w: int, r: int, found: int, pieces: int, unused: int, now_s: float
) -> bool:
    """Room for the history; what the prefix cache lacks of it is read before computing."""
    worker, q = s.wrk[w], s.req[r]
    room = q.target if worker.reserve_prompt else q.reads
    if not _fits(worker, worker_blocks(worker, room) - found + unused):
        return False
    _enter(s, w, r, found, pieces, q.reads)
    q.hit_tokens = q.computed
    start_read(s, w, r, q.reads - q.computed, now_s)
    return True


@kernel
def _admit_pull(
    s: State, w: int, r: int, found: int, pieces: int, unused: int, now_s: float
) -> bool:
    """Room for the whole prompt; what the prefix cache lacks is pulled.

    The last prompt token is computed here anyway: if it is all that lacks, nothing moves.
    """
    worker, q = s.wrk[w], s.req[r]
    if not _fits(worker, worker_blocks(worker, q.ask) - found + unused):
        return False
    _enter(s, w, r, found, pieces, q.ask)
    lacking = q.ask - q.computed
    start_pull(s, w, r, lacking if lacking > 1 else 0, now_s)
    return True
