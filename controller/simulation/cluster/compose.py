# SPDX-License-Identifier: Apache-2.0
"""What a worker does next: one mixed step, or as many equal decode steps as nothing disturbs.

Owns: the duration of steps and their number. Does not own: who takes part (batch.py), composing a
step ahead (ahead.py).
"""

from __future__ import annotations

from typing import Any

from controller.costs.calls import unpack
from controller.costs.kernels import decode_line, step_s
from controller.simulation.cluster.ahead import compose_ahead, settled
from controller.simulation.cluster.batch import compose_batch
from controller.simulation.cluster.clock import NEVER, key, steps_s, steps_until
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.decodes import steps_begun, steps_with_room, tokens_after
from controller.simulation.cluster.drain import through_at
from controller.simulation.cluster.heaps import schedule
from controller.simulation.cluster.links import join_pulled, next_release, settle_pins
from controller.simulation.cluster.prefix import path_of
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
    if worker.lead:
        compose_ahead(s, w, now_s)
    else:
        join_pulled(s, w, instant)
        compose_batch(s, w, now_s)
    if worker.changed:
        report(s, w)
    if worker.in_batch == 0 and worker.chunk == 0:
        _rest(s, w)
    else:
        _start(s, w, now_s)


@kernel
def _start(s: State, w: int, now_s: float) -> None:
    worker = s.wrk[w]
    worker.busy = 1
    worker.start_s = now_s
    worker.grown = 1 + worker.lead
    if worker.chunk == 0 and not worker.partial and settled(worker):
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
    batch, context = worker.in_batch, worker.batch_context
    a, c, until = _line(s, worker, batch, context)
    before = steps_begun(worker)
    grows = batch * (tokens_after(worker, before + 1) - tokens_after(worker, before))
    worker.first_s = a + c * context
    worker.slope_s = c * grows
    n = s.mem[worker.ends] - worker.step
    if worker.preempting or worker.recheck or _registers_soon(s, worker):
        n = 1
    if until < 1e18:
        n = min(n, int((until - context) / grows) + 1)
    if worker.emit_den > 1:
        n = min(n, _alike(worker, before, n))
    worker.n = max(1, steps_with_room(s, worker, n + worker.lead) - worker.lead)
    if worker.pull_head >= 0:
        worker.n = steps_until(worker, key(s.req[worker.pull_head].pulled_s))
    if worker.waiting > 0 and (worker.pin_head >= 0 or worker.orphan_head >= 0):
        worker.n = steps_until(worker, next_release(s, worker))


@kernel
def _alike(worker: Any, before: int, most: int) -> int:
    """Of the next steps, after which the context has grown alike each time; and one more."""
    first = tokens_after(worker, before + 1)
    each, n = first - tokens_after(worker, before), 1
    while n < most and n < worker.emit_den:
        after = tokens_after(worker, before + n + 1)
        if after - first != each:
            n += 1
            break
        first = after
        n += 1
    return n


@kernel
def _registers_soon(s: State, worker: Any) -> bool:
    """Whether the first step fills a block of a shared prompt, the last one of a decode leg.

    That block can be found from the end of that step on. Of two copies the one that was registered
    first is used, so it must not be registered later than that. In a prompt's own part only its
    later rounds can find it.
    """
    size = worker.block_size
    r = worker.fresh_head
    while r >= 0:
        q = s.req[r]
        if q.ask % size == 0 and worker.prefix_cache:
            _a, _b, _per_id, known = path_of(s, r, size)
            if known * size >= q.ask:
                return True
        r = q.peer_next
    return False


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
