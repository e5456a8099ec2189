# SPDX-License-Identifier: Apache-2.0
"""What a worker does next: one mixed step, or as many equal decode steps as nothing disturbs.

Owns: the composition of steps from sums, their duration and number. Does not own: compositions
that depend on the order of the running requests or lack blocks (explicit.py), admission.
"""

from __future__ import annotations

from typing import Any

from controller.costs.calls import unpack
from controller.costs.kernels import decode_line, step_s
from controller.simulation.cluster.admit import add_chunk, admit_waiting
from controller.simulation.cluster.blocks import take, worker_blocks
from controller.simulation.cluster.chunks import capped
from controller.simulation.cluster.clock import NEVER, key, steps_s, steps_until
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.decodes import first_growth, steps_with_room
from controller.simulation.cluster.drain import through_at
from controller.simulation.cluster.explicit import compose_one_by_one
from controller.simulation.cluster.heaps import schedule
from controller.simulation.cluster.links import join_pulled, next_release, settle_pins
from controller.simulation.cluster.report import report
from controller.simulation.cluster.state import BATCHES, DRAINING, STARTING, State

MOST_STEPS = 1 << 40


@kernel
def compose(s: State, w: int, now_s: float) -> None:
    """Compose and start the worker's next steps; without any it waits for an event."""
    worker = s.wrk[w]
    if worker.life >= STARTING:
        return
    instant = key(now_s)
    settle_pins(s, w, instant)
    join_pulled(s, w, instant)
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
    if worker.changed:
        report(s, w)
    if worker.in_batch == 0 and worker.chunk == 0:
        _rest(s, w)
    else:
        _start(s, w, now_s)


@kernel
def _continue_running(s: State, w: int) -> bool:
    """The running requests' part of the step; False if one of them lacked blocks."""
    worker = s.wrk[w]
    decodes = worker.decodes
    need = first_growth(s, worker)
    if worker.prefills == 0:
        if decodes > worker.budget or need > worker.free:
            return compose_one_by_one(s, w, True, True)
    else:
        blocks, tight = _plan_prefills(s, worker, worker.budget - decodes)
        # With budget for all the order does not matter; without, decodes must stand first.
        late = tight and worker.last_join > s.req[worker.pre_head].joined
        if decodes > worker.budget or need + blocks > worker.free or late:
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
    if worker.partial or worker.decodes > worker.budget or need > worker.free:
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
    worker.budget -= worker.decodes


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


@kernel
def _start(s: State, w: int, now_s: float) -> None:
    worker = s.wrk[w]
    worker.busy = 1
    worker.start_s = now_s
    worker.grown = 1
    if worker.chunk == 0 and not worker.partial:
        _plan_steps(s, worker)
    else:
        charged = worker.charge_prefill
        worker.n = 1
        worker.slope_s = 0.0
        worker.first_s = step_s(
            unpack(s.data, s.bounds[worker.table]),
            float(worker.in_batch),
            float(worker.batch_context),
            float(worker.chunk) if charged else 0.0,
            worker.pairs if charged else 0.0,
        )
    worker.end_s = now_s + steps_s(worker.first_s, worker.slope_s, worker.n)
    schedule(s, w, key(worker.end_s))


@kernel
def _plan_steps(s: State, worker: Any) -> None:
    """Decode steps of one batch: as many as bring no end, no lack of blocks and no newcomer."""
    batch, context = worker.decodes, worker.context
    a, c, until = _line(s, worker, batch, context)
    worker.first_s = a + c * context
    worker.slope_s = c * batch
    n = s.mem[worker.ends] - worker.step
    if worker.preempting or worker.recheck:
        n = 1
    if until < 1e18:
        n = min(n, int((until - context) / batch) + 1)
    worker.n = max(1, steps_with_room(s, worker, n))
    if worker.pull_head >= 0:
        worker.n = steps_until(worker, key(s.req[worker.pull_head].pulled_s))
    if worker.waiting > 0 and (worker.pin_head >= 0 or worker.orphan_head >= 0):
        worker.n = steps_until(worker, next_release(s, worker))


@kernel
def _line(s: State, worker: Any, batch: int, context: int) -> tuple[float, float, float]:
    """The line of a decode step (controller.costs.kernels.decode_line), remembered by batch."""
    known = s.line[worker.table * s.ctl[BATCHES] + batch]
    if not known[2] <= context <= known[3]:
        a, c, until = decode_line(
            unpack(s.data, s.bounds[worker.table]), float(batch), float(context)
        )
        known[0], known[1], known[2], known[3] = a, c, context, until
    return float(known[0]), float(known[1]), float(known[3])


@kernel
def _rest(s: State, w: int) -> None:
    """Nothing can run: wait for a pull to end, or for pinned blocks to become free."""
    worker = s.wrk[w]
    worker.busy = 0
    at = NEVER
    if worker.pull_head >= 0:
        at = key(s.req[worker.pull_head].pulled_s)
    if worker.waiting > 0 or worker.running > 0:
        at = min(at, next_release(s, worker))
    if worker.life == DRAINING:
        at = min(at, through_at(s, w))
    schedule(s, w, at)
