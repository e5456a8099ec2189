# SPDX-License-Identifier: Apache-2.0
"""Workers come, drain, change sides and go.

Owns: the life of a worker and the pools of live ones. Does not own: what becomes of requests when
one is lost (failures.py), when a draining one is through (drain.py).
"""

from __future__ import annotations

from controller.simulation.cluster.clock import NEVER, key
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.drain import give_up_queue, look_again
from controller.simulation.cluster.failures import lose_work
from controller.simulation.cluster.heaps import schedule
from controller.simulation.cluster.state import (
    CLOCK,
    DEAD,
    DRAINING,
    EVENT_AT,
    LIVE,
    NEXT_EVENT,
    PREFILL_POOL,
    PREFILLS,
    STARTING,
    State,
)
from controller.simulation.cluster.wipe import wipe

FAIL, JOIN, DRAIN, SWITCH = range(4)  # events.EventKind


@kernel
def cluster_event(s: State) -> None:
    """The next event of the list."""
    i = s.ctl[NEXT_EVENT]
    s.ctl[NEXT_EVENT] = i + 1
    s.ctl[EVENT_AT] = s.event[i + 1].at if i + 1 < s.event.size else NEVER
    w, kind = s.event[i].worker, s.event[i].kind
    if kind == FAIL:
        _fail(s, w)
    elif kind == JOIN:
        _join(s, w)
    else:
        _drain(s, w, kind == SWITCH)


@kernel
def come_up(s: State, w: int) -> None:
    """A cold start is over."""
    worker = s.wrk[w]
    schedule(s, w, NEVER)
    worker.life = LIVE
    _enter_pool(s, w)


@kernel
def leave(s: State, w: int) -> None:
    """A draining worker has nothing left."""
    worker = s.wrk[w]
    schedule(s, w, NEVER)
    wipe(s, w)
    worker.life = DEAD
    if worker.switching:
        worker.role = 1 - worker.role
        _start(s, w)


@kernel
def _start(s: State, w: int) -> None:
    worker = s.wrk[w]
    worker.life, worker.switching = STARTING, 0
    schedule(s, w, key(s.ctl[CLOCK] * 1e-9 + worker.cold_start_s))


@kernel
def _fail(s: State, w: int) -> None:
    worker = s.wrk[w]
    life = worker.life
    schedule(s, w, NEVER)
    worker.life, worker.switching = DEAD, 0
    if life == LIVE:
        _leave_pool(s, w)
    if life < STARTING:
        lose_work(s, w)
        wipe(s, w)


@kernel
def _join(s: State, w: int) -> None:
    worker = s.wrk[w]
    if worker.life == DEAD:
        _start(s, w)
    elif worker.life == DRAINING:
        worker.life, worker.switching = LIVE, 0
        _enter_pool(s, w)


@kernel
def _drain(s: State, w: int, switch: bool) -> None:
    worker = s.wrk[w]
    if worker.life == LIVE:
        _leave_pool(s, w)
        worker.life, worker.switching = DRAINING, switch
        if worker.role == PREFILLS:
            give_up_queue(s, w)
        look_again(s, w)
    elif worker.life == DRAINING:
        worker.switching = switch
    elif switch:
        worker.role = 1 - worker.role
        if worker.life == DEAD:
            _start(s, w)
    elif worker.life == STARTING:
        schedule(s, w, NEVER)
        worker.life = DEAD


@kernel
def _enter_pool(s: State, w: int) -> None:
    """Live workers of one side stand in order of their numbers."""
    side = s.wrk[w].role
    at = s.ctl[PREFILL_POOL + side]
    s.ctl[PREFILL_POOL + side] = at + 1
    while at > 0 and s.pool[side, at - 1] > w:
        s.pool[side, at] = s.pool[side, at - 1]
        at -= 1
    s.pool[side, at] = w


@kernel
def _leave_pool(s: State, w: int) -> None:
    side = s.wrk[w].role
    count = s.ctl[PREFILL_POOL + side] - 1
    s.ctl[PREFILL_POOL + side] = count
    passed = 0
    for i in range(count):
        if s.pool[side, i] == w:
            passed = 1
        s.pool[side, i] = s.pool[side, i + passed]
