# SPDX-License-Identifier: Apache-2.0
"""Compositions that go through the running requests one by one.

Owns: steps in which a running request lacks blocks (preemption by recompute), or in which the
budget ends before all of them had their turn. Does not own: all other steps (compose.py).

These are rare, so they may cost a pass over the batch. Decodes that are left out keep their
place; `hold_back` moves their ends and residues by the step that they missed.
"""

from __future__ import annotations

from controller.simulation.cluster.admit import add_chunk
from controller.simulation.cluster.blocks import give_private, release, take, worker_blocks
from controller.simulation.cluster.chunks import capped
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.decodes import (
    has_spare,
    leave_decodes,
    next_tokens,
    residue,
    steps_for,
    tokens_after,
)
from controller.simulation.cluster.heaps import WIDTH, remove_end, restore_ends
from controller.simulation.cluster.lists import (
    push_waiting,
    remove_fresh,
    remove_prefill,
    remove_running,
)
from controller.simulation.cluster.state import STINT_USED, State


@kernel
def compose_one_by_one(s: State, w: int, decodes: bool, prefills: bool) -> bool:
    """Running requests of these kinds in admission order; False if one of them lacked blocks."""
    goes_on = _one_by_one(s, w, decodes, prefills)
    if s.wrk[w].in_batch == 0:
        count_spares(s, w)
    return goes_on


@kernel
def _one_by_one(s: State, w: int, decodes: bool, prefills: bool) -> bool:
    worker = s.wrk[w]
    _leave_out_all(s, w)
    size, tokens_each = worker.block_size, next_tokens(worker)
    r = worker.run_head
    while r >= 0 and worker.budget > 0:
        q = s.req[r]
        if q.decoding and decodes and q.end_step > worker.step:
            computed = q.computed + worker.clock - q.since
            q.blocks = max(q.blocks, worker_blocks(worker, computed))
            after = computed + tokens_each
            if after > q.blocks * size:
                need = worker_blocks(worker, after) - q.blocks
                if not _make_room(s, w, r, need):
                    return False
            q.skipped = 0
            worker.in_batch += 1
            worker.batch_context += computed
            worker.budget -= worker.verified
        elif not q.decoding and prefills:
            tokens = min(capped(q, q.target - q.computed), worker.budget)
            need = worker_blocks(worker, q.computed + tokens) - q.blocks
            if need > 0 and not _make_room(s, w, r, need):
                return False
            add_chunk(worker, q, tokens)
        r = q.next
    return not worker.preempting


@kernel
def _leave_out_all(s: State, w: int) -> None:
    worker = s.wrk[w]
    worker.partial = 1
    r = worker.run_head
    while r >= 0:
        s.req[r].skipped = 1
        s.req[r].chunk = 0
        r = s.req[r].next


@kernel
def _make_room(s: State, w: int, r: int, need: int) -> bool:
    """Take blocks for a running request, if need be from the most recently admitted ones.

    The most recent may be the request itself. Alone it keeps what it has and waits.
    """
    worker = s.wrk[w]
    while need > worker.free:
        victim = worker.run_tail
        if victim == r and worker.running == 1:
            return False
        _preempt(s, w, victim)
        if victim == r:
            return False
    take(s, w, need)
    s.req[r].blocks += need
    return True


@kernel
def _preempt(s: State, w: int, r: int) -> None:
    """By recompute: blocks back, generated tokens become prompt, to the front of the queue."""
    worker, q = s.wrk[w], s.req[r]
    worker.preemptions += 1
    worker.preempting = 1
    remove_running(s.req, worker, r)
    if not q.decoding or q.under_way > 0:
        remove_prefill(s.req, worker, r)
    if q.decoding:
        remove_end(s.mem, worker.ends, worker.decodes, r)
        leave_decodes(s, w, r)
        if q.generated > 0:
            close_stint(s, w, r)
        elif q.under_way == 0:
            remove_fresh(s.req, worker, r)
    give_private(s, w, q.blocks - q.registered)
    release(s, w, q.refs)
    q.refs = -1
    q.blocks = q.registered = q.computed = q.chunk = q.under_way = 0
    q.target = q.ask + q.generated
    push_waiting(s.req, worker, r)


@kernel
def close_stint(s: State, w: int, r: int) -> None:
    """Its tokens up to the last finished step came without interruption; the next will not."""
    q = s.req[r]
    at = s.ctl[STINT_USED]
    s.ctl[STINT_USED] = at + 1
    stint = s.stint[at]
    stint.token_s = q.stint_s
    stint.low, stint.high = q.stint_step, s.wrk[w].step - (s.wrk[w].in_flight > 0)
    stint.worker = w
    stint.before = q.stints
    q.stints = at
    q.stint_s = -1.0


@kernel
def hold_back(s: State, w: int) -> None:
    """After a step that left decodes out: they miss it, so everything of theirs comes later.

    Called when the step is counted already.
    """
    worker = s.wrk[w]
    size = worker.block_size
    tokens = worker.clock - tokens_after(worker, worker.step - 1)
    for i in range(worker.decodes):
        place = worker.ends + WIDTH * i
        r = s.mem[place + 2]
        q = s.req[r]
        if not q.skipped:
            continue
        q.skipped = 0
        s.mem[worker.residues + residue(q, size)] -= 1
        q.since += tokens
        q.missed = worker.step
        q.end_step = steps_for(worker, q.since + q.limit - q.generated)
        s.mem[worker.residues + residue(q, size)] += 1
        s.mem[place] = q.end_step
        if q.generated + worker.clock - q.since > 0:
            _interrupt(s, w, r)
    restore_ends(s.mem, worker.ends, worker.decodes)
    count_spares(s, w)


@kernel
def _interrupt(s: State, w: int, r: int) -> None:
    """A decode that has tokens missed the step that is counted last."""
    q = s.req[r]
    last = s.wrk[w].step - 1
    if q.stint_step <= last or q.stint_s >= 0.0:
        close_stint(s, w, r)
        s.stint[q.stints].high = last
    q.stint_step = last + 2


@kernel
def count_spares(s: State, w: int) -> None:
    """After such a step: decodes whose next block is there before its turn."""
    worker = s.wrk[w]
    worker.spare = 0
    for i in range(worker.decodes):
        r = s.mem[worker.ends + WIDTH * i + 2]
        q = s.req[r]
        if has_spare(q, q.computed + worker.clock - q.since, worker.block_size):
            worker.spare += 1
