# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a worker's next step, as sums.

Owns: the composition of one step: running requests, then waiting ones. Does not own: compositions
that depend on the order of the running requests or lack blocks (explicit.py), admission, when
steps are composed and how many alike follow (compose.py, ahead.py).
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.admit import add_chunk, admit_waiting
from controller.simulation.cluster.blocks import take, worker_blocks
from controller.simulation.cluster.chunks import capped
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.decodes import first_growth
from controller.simulation.cluster.explicit import compose_one_by_one
from controller.simulation.cluster.state import State


@kernel
def compose_batch(s: State, w: int, now_s: float) -> None:
    """The next step's sums into the worker's record; 0 decodes and 0 tokens: there is none."""
    worker = s.wrk[w]
    worker.budget = worker.max_tokens
    worker.in_batch = worker.partial = 0
    worker.batch_context = worker.chunk = 0
    worker.pairs = 0.0
    worker.preempting = worker.recheck = 0
    worker.compositions += 1
    if worker.prefill_first:
        _prefills_first(s, w, now_s)
    elif _continue_running(s, w):
        admit_waiting(s, w, now_s)


@kernel
def _one_by_one(s: State, worker: Any, need: int, blocks: int) -> bool:
    """Whether the decodes cannot be taken as one: budget or blocks are short, or with a lead the
    last token of one of them is under way."""
    if worker.decodes == 0:
        return bool(need + blocks > worker.free)
    short = worker.decodes * worker.verified > worker.budget or need + blocks > worker.free
    return bool(short or s.mem[worker.ends] <= worker.step)


@kernel
def _continue_running(s: State, w: int) -> bool:
    """The running requests' part of the step; False if one of them lacked blocks."""
    worker = s.wrk[w]
    need = first_growth(s, worker)
    if worker.prefills == 0:
        if _one_by_one(s, worker, need, 0):
            return compose_one_by_one(s, w, True, True)
    else:
        left = worker.budget - worker.decodes * worker.verified
        blocks, tight = _plan_prefills(s, worker, left)
        # With budget for all the order does not matter; without, decodes must stand first.
        late = tight and worker.last_join > s.req[worker.pre_head].joined
        if late or _one_by_one(s, worker, need, blocks):
            return compose_one_by_one(s, w, True, True)
        _add_prefills(s, w)
    _add_decodes(s, w, need)
    return True


@kernel
def _prefills_first(s: State, w: int, now_s: float) -> None:
    """Prefills, running and waiting; decodes only when no prompt token is in the step."""
    worker = s.wrk[w]
    goes_on = True
    if worker.prefills > 0:
        blocks, _tight = _plan_prefills(s, worker, worker.budget)
        if blocks > worker.free:
            goes_on = compose_one_by_one(s, w, False, True)
        else:
            _add_prefills(s, w)
    if goes_on:
        admit_waiting(s, w, now_s)
    if worker.chunk > 0:
        return
    need = first_growth(s, worker)
    if worker.partial or _one_by_one(s, worker, need, 0):
        compose_one_by_one(s, w, True, False)
    else:
        _add_decodes(s, w, need)


@kernel
def _add_decodes(s: State, w: int, need: int) -> None:
    """All decodes, with the blocks that they need."""
    worker = s.wrk[w]
    if need > 0:
        take(s, w, need)
    worker.spare = 0
    worker.in_batch = worker.decodes
    worker.batch_context = worker.context
    worker.budget -= worker.decodes * worker.verified


@kernel
def _plan_prefills(s: State, worker: Any, budget: int) -> tuple[int, bool]:
    """Chunks of the unfinished prefills: blocks they need, whether the budget cuts one short."""
    blocks, tight = 0, False
    r = worker.pre_head
    while r >= 0:
        q = s.req[r]
        wanted = capped(q, q.target - q.computed)
        q.chunk = max(0, min(wanted, budget))
        if q.chunk < wanted:
            tight = True
        if q.chunk > 0:
            blocks += max(0, worker_blocks(worker, q.computed + q.chunk) - q.blocks)
            budget -= q.chunk
        r = q.peer_next
    return blocks, tight


@kernel
def _add_prefills(s: State, w: int) -> None:
    worker = s.wrk[w]
    r = worker.pre_head
    while r >= 0:
        q = s.req[r]
        if q.chunk > 0:
            need = worker_blocks(worker, q.computed + q.chunk) - q.blocks
            if need > 0:
                take(s, w, need)
                q.blocks += need
            add_chunk(worker, q, q.chunk)
        r = q.peer_next
