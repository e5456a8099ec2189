# SPDX-License-Identifier: Apache-2.0
"""When a draining worker is through, and what is taken off its hands before.

Owns: the instant at which it may leave. Does not own: the leaving (lifecycle.py).

A decode worker is through when no live request is bound to it, those included whose prefill is
still elsewhere. A prefill worker is through when it computes nothing and all that it made has
been pulled, or its lease has ended.
"""

from __future__ import annotations

from controller.simulation.cluster.clock import NEVER, key
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.heaps import push_later, schedule
from controller.simulation.cluster.state import (
    ADRIFT,
    BOOKED,
    CLOCK,
    DEAD,
    DECODES,
    DRAINING,
    FLYING,
    WAIT_S,
    WAIT_TOKENS,
    State,
)


@kernel
def through_at(s: State, w: int) -> int:
    """The instant at which a draining worker has nothing left, or NEVER while that is open."""
    worker = s.wrk[w]
    now = s.ctl[CLOCK]
    if worker.role == DECODES:
        return int(now) if worker.bound == 0 else NEVER
    if s.seen[FLYING, w] > 0 or _awaited(s, w):
        return NEVER
    at = now
    if worker.pin_tail >= 0:
        at = max(at, key(s.req[worker.pin_tail].release_s))
    if worker.orphan_tail >= 0:
        at = max(at, key(s.orphan[worker.orphan_tail].release_s))
    return int(at)


@kernel
def _awaited(s: State, w: int) -> bool:
    """Whether a decode leg still has to begin its pull from worker w."""
    for d in range(s.wrk.size):
        if s.wrk[d].role != DECODES or s.wrk[d].life == DEAD:
            continue
        r = s.wrk[d].wait_head
        while r >= 0:
            if s.req[r].pull_pending and s.req[r].prefill_worker == w:
                return True
            r = s.req[r].next
    return False


@kernel
def look_again(s: State, w: int) -> None:
    """Something that a draining worker may wait for has happened elsewhere."""
    worker = s.wrk[w]
    if worker.life == DRAINING and not worker.busy:
        schedule(s, w, s.ctl[CLOCK])


@kernel
def unhold(s: State, r: int) -> None:
    """The request's decode worker is no longer bound to serve it."""
    q = s.req[r]
    w = q.decode_worker
    if w >= 0:
        s.seen[BOOKED, w] -= q.ask
        s.wrk[w].bound -= 1
        look_again(s, w)


@kernel
def set_adrift(s: State, r: int) -> None:
    """The request has lost its worker: it comes to the router again, at this instant."""
    s.req[r].leg = ADRIFT
    s.req[r].pulled_s = -1.0
    push_later(s, s.ctl[CLOCK], r)


@kernel
def give_up_queue(s: State, w: int) -> None:
    """What waits at the router for a prefill worker that is going is placed elsewhere."""
    worker = s.wrk[w]
    _place_all(s, worker.queue_head)
    _place_all(s, worker.late_head)
    worker.queue_head = worker.queue_tail = worker.late_head = worker.late_tail = -1
    worker.queued = worker.lates = 0
    worker.late_s = worker.credit = 0.0
    s.books[WAIT_S, w] = 0.0
    s.seen[WAIT_TOKENS, w] = 0


@kernel
def _place_all(s: State, r: int) -> None:
    while r >= 0:
        after = s.req[r].next
        place_anew(s, r)
        r = after


@kernel
def place_anew(s: State, r: int) -> None:
    """A prefill's worker is gone: one more placement is spent."""
    s.req[r].tries += 1
    unhold(s, r)
    set_adrift(s, r)
