# SPDX-License-Identifier: Apache-2.0
"""The event loop: one instant after another.

Owns: the order of events. Does not own: what they do.

Within one instant (clock.py): cluster events, then workers whose steps end or who wake, by
number, then arrivals, by row; only when none of these is left, the first of those concerned
composes. So what happens at an instant is seen by every step that begins at it.
"""

from __future__ import annotations

from controller.simulation.cluster.admit import make_ready
from controller.simulation.cluster.clock import NEVER, key
from controller.simulation.cluster.compiled import entry, kernel
from controller.simulation.cluster.compose import compose
from controller.simulation.cluster.drain import through_at
from controller.simulation.cluster.heaps import pop_later, schedule
from controller.simulation.cluster.lifecycle import cluster_event, come_up, leave
from controller.simulation.cluster.router import arrive
from controller.simulation.cluster.state import (
    CLOCK,
    DONE,
    DRAINING,
    EVENT_AT,
    EVENTS_DONE,
    HOLDS_LEFT,
    KEEP_LOG,
    LATER,
    LOG_USED,
    NEED_HOLDINGS,
    NEED_LOG,
    NEED_NEWS,
    NEED_ORPHANS,
    NEED_REFERENCES,
    NEED_STINTS,
    NEWS_FULL,
    NEXT_OWN,
    OPEN,
    ORPHANS_LEFT,
    PAUSED,
    READY,
    REFS_LEFT,
    STARTING,
    STINT_USED,
    WORKERS_DUE,
    State,
)
from controller.simulation.cluster.steps import end_steps


@entry
def run(s: State, until: int, margin: int) -> int:
    """All events before the clock key `until`. Returns DONE, PAUSED or what must grow first.

    `margin` is the most entries of any pool that one event or composition can use up.
    """
    while True:
        lack = _lack(s, margin)
        if lack != DONE:
            return lack
        at = _next_instant(s)
        if s.ctl[READY] > 0 and at > s.ctl[CLOCK]:
            _compose_next(s)
            continue
        if at == NEVER:
            return DONE
        if at >= until:
            return PAUSED
        s.ctl[CLOCK] = at
        s.ctl[EVENTS_DONE] += 1
        if s.ctl[EVENT_AT] == at:
            cluster_event(s)
        elif s.ctl[WORKERS_DUE] > 0 and s.due[s.heap[0]] == at:
            _worker_event(s, s.heap[0])
        else:
            _arrival(s, at)


@kernel
def _lack(s: State, margin: int) -> int:
    if s.ctl[HOLDS_LEFT] < margin:
        return NEED_HOLDINGS
    if s.ctl[REFS_LEFT] < margin:
        return NEED_REFERENCES
    if s.ctl[KEEP_LOG] and s.ctl[LOG_USED] + 2 > s.log.size:
        return NEED_LOG
    if s.ctl[STINT_USED] + margin > s.stint.size:
        return NEED_STINTS
    return _lack_of_events(s)


@kernel
def _lack_of_events(s: State) -> int:
    """The same for pools that only failures or delayed reports need."""
    if s.ctl[EVENT_AT] != NEVER and s.ctl[ORPHANS_LEFT] < s.ctl[OPEN]:
        return NEED_ORPHANS
    return NEED_NEWS if s.ctl[NEWS_FULL] else DONE


@kernel
def _next_instant(s: State) -> int:
    at = s.ctl[EVENT_AT]
    if s.ctl[WORKERS_DUE] > 0:
        at = min(at, s.due[s.heap[0]])
    if s.ctl[NEXT_OWN] < s.own.size:
        at = min(at, key(s.req[s.own[s.ctl[NEXT_OWN]]].arrival_s))
    if s.ctl[LATER] > 0:
        at = min(at, s.later_key[0])
    return at


@kernel
def _worker_event(s: State, w: int) -> None:
    worker = s.wrk[w]
    if worker.busy:
        schedule(s, w, NEVER)
        end_steps(s, w)
    elif worker.life == STARTING:
        come_up(s, w)
    elif worker.life == DRAINING and through_at(s, w) <= s.ctl[CLOCK]:
        leave(s, w)
    else:
        instant = s.ctl[CLOCK]
        now_s = instant * 1e-9
        if worker.pull_head >= 0 and key(s.req[worker.pull_head].pulled_s) <= instant:
            now_s = s.req[worker.pull_head].pulled_s
        elif worker.pin_head >= 0 and key(s.req[worker.pin_head].release_s) <= instant:
            now_s = s.req[worker.pin_head].release_s
        schedule(s, w, NEVER)
        make_ready(s, w, now_s)


@kernel
def _arrival(s: State, at: int) -> None:
    """The next row that arrives now, of those that follow another one and those that do not."""
    next_own = s.ctl[NEXT_OWN]
    own = s.own[next_own] if next_own < s.own.size else -1
    due = own >= 0 and key(s.req[own].arrival_s) == at
    if due and (s.ctl[LATER] == 0 or s.later_key[0] > at or s.later_row[0] > own):
        s.ctl[NEXT_OWN] = next_own + 1
        arrive(s, own)
    else:
        arrive(s, pop_later(s))


@kernel
def _compose_next(s: State) -> None:
    """The first of those that are concerned by this instant; `ready` has it last."""
    s.ctl[READY] -= 1
    w = s.ready[s.ctl[READY]]
    s.wrk[w].ready = 0
    compose(s, w, s.wrk[w].ready_s)
