# SPDX-License-Identifier: Apache-2.0
"""The router of the simulated cluster: binding, placement, queues, hand-over, followers.

Owns: the life of a request between the engines. Does not own: the rules
(controller.routing.kernels), the engines.
"""

from __future__ import annotations

from controller.costs.calls import unpack
from controller.costs.kernels import transfer_s
from controller.routing.kernels.algorithm_2 import ROOM
from controller.routing.kernels.binding import least_context
from controller.routing.kernels.choice import look, send
from controller.routing.kernels.draws import decision_draw
from controller.routing.kernels.reasons import NO_DECODE_WORKER
from controller.routing.kernels.revision import MOST_ASKED, doubtful
from controller.simulation.cluster.admit import add_request
from controller.simulation.cluster.blocks import worker_blocks
from controller.simulation.cluster.books import (
    add_sample,
    fly,
    flying_s,
    land,
    leave_queue,
    queue_up,
    waited,
)
from controller.simulation.cluster.clock import key
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.drain import unhold
from controller.simulation.cluster.estimates import history_tokens, prefill_time_s
from controller.simulation.cluster.heaps import push_later
from controller.simulation.cluster.links import orphan
from controller.simulation.cluster.ordering import ordering, prefill_due_s
from controller.simulation.cluster.placement import BATCH, place, place_at_last
from controller.simulation.cluster.report import hear, hear_all
from controller.simulation.cluster.state import (
    ADRIFT,
    AT_ROUTER,
    BINDING,
    BINDINGS,
    BOOKED,
    CLOCK,
    DECODE_LEG,
    DECODE_POOL,
    DECODE_TURN,
    ENDED,
    FAILED_,
    FLY_TOKENS,
    FLYING,
    HISTORY_READ,
    LIVE,
    LOCAL,
    LOCAL_LEG,
    LOCAL_UNTIL_S,
    MADE,
    OPEN,
    PLACEMENT,
    PREFILL_LEG,
    PREFILL_POOL,
    REJECT,
    REJECTED_,
    REMOTE,
    SEED,
    SERVED_,
    State,
)

LEAST_CONTEXT, ROUND_ROBIN = range(2)  # ctl[BINDING]
PLACEMENTS = 2
"""Prefill workers that may be tried for a leg; then its decode worker prefills."""


@kernel
def arrive(s: State, r: int) -> None:
    """A request reaches the router, for the first time or after the loss of a worker."""
    q = s.req[r]
    if q.leg == ADRIFT:
        q.leg = AT_ROUTER
        dispatch(s, r, s.ctl[CLOCK] * 1e-9)
        return
    s.ctl[OPEN] += 1
    q.ask = q.prompt
    q.leg = AT_ROUTER
    dispatch(s, r, q.arrival_s)


@kernel
def dispatch(s: State, r: int, now_s: float) -> None:
    """Bind it to a decode worker, place its prefill, send it there."""
    q = s.req[r]
    known = s.bound[q.session]
    if not bind(s, r):
        q.reason = NO_DECODE_WORKER
        refuse(s, r, now_s)
        return
    fresh = known != q.decode_worker
    if too_large(s, q.decode_worker, r):
        refuse(s, r, now_s)
        return
    q.queued_s, q.asked_s, q.postponed = now_s, now_s, 0
    _hear_for(s, q.decode_worker, fresh)
    _go(s, r, fresh, now_s)
    revise(s, now_s)


@kernel
def revise(s: State, now_s: float) -> None:
    """`batch`: who waits and is not expected in time chooses again, one after another."""
    if s.ctl[PLACEMENT] != BATCH:
        return
    rule = ordering(s)
    left = MOST_ASKED
    for k in range(s.ctl[PREFILL_POOL]):
        w = s.pool[0, k]
        while left > 0:
            r = doubtful(s.req, s.wrk[w], rule, now_s + flying_s(s, w, now_s), now_s)
            if r < 0:
                break
            left -= 1
            s.req[r].asked_s = now_s
            leave_queue(s, w, r)
            unhold(s, r)
            hear(s, s.req[r].decode_worker)
            _go(s, r, False, now_s)


@kernel
def _go(s: State, r: int, fresh: bool, now_s: float) -> None:
    """To the place that the rule chooses for it now."""
    q = s.req[r]
    if q.tries < PLACEMENTS:
        w, history, cached = place(s, r, fresh, now_s)
    else:
        w, history, cached = -1, place_at_last(s, r, now_s), 0
    q.pulled_tokens = q.ask - history  # expected; the pull knows better
    if w < 0:
        if fresh and too_large(s, q.decode_worker, r):
            refuse(s, r, now_s)  # the rule has moved it
            return
        _send_local(s, r, history, now_s)
        return
    if worker_blocks(s.wrk[w], q.ask) > s.wrk[w].num_blocks:
        refuse(s, r, now_s)
        return
    _hold(s, r)
    q.place, q.prefill_worker = REMOTE, w
    if s.ctl[HISTORY_READ]:
        cached = max(cached, history)
    q.uncached = q.ask - min(cached, q.ask - 1)
    q.predicted_s = prefill_time_s(s, w, r, cached)
    q.due_s = prefill_due_s(s, r, history)
    queue_up(s, w, r)
    pump(s, w, now_s)


@kernel
def _hear_for(s: State, w: int, fresh: bool) -> None:
    """Reports that placement may read: of the decode worker, or of all while it may change."""
    if fresh:
        hear_all(s)
    else:
        hear(s, w)


@kernel
def too_large(s: State, w: int, r: int) -> bool:
    """Whether prompt and output cannot fit even alone (EngineSpec.most_tokens)."""
    worker, q = s.wrk[w], s.req[r]
    beyond = (worker.emit_num + worker.emit_den - 1) // worker.emit_den - 1
    return worker_blocks(worker, q.prompt + q.output - 1 + beyond) > worker.num_blocks


@kernel
def bind(s: State, r: int) -> bool:
    """The session's decode worker while it lives, else one with little context; False: none."""
    q = s.req[r]
    count = s.ctl[DECODE_POOL]
    if count == 0:
        return False
    w = s.bound[q.session]
    if w < 0 or s.wrk[w].life != LIVE:
        if s.ctl[BINDING] == ROUND_ROBIN:
            chosen = s.ctl[DECODE_TURN] % count
            s.ctl[DECODE_TURN] += 1
        else:
            draw = decision_draw(~s.ctl[SEED], s.ctl[BINDINGS])
            s.ctl[BINDINGS] += 1
            context = s.scratch[:count]
            hear_all(s)
            for i in range(count):
                context[i] = s.seen[BOOKED, s.pool[1, i]] + s.seen[MADE, s.pool[1, i]]
            chosen = least_context(context, draw)
        w = s.pool[1, chosen]
        s.bound[q.session] = w
    q.decode_worker = w
    return True


@kernel
def _hold(s: State, r: int) -> None:
    """The decode worker's context will hold this prompt."""
    q = s.req[r]
    s.seen[BOOKED, q.decode_worker] += q.ask
    s.wrk[q.decode_worker].bound += 1


@kernel
def _send_local(s: State, r: int, history: int, now_s: float) -> None:
    q = s.req[r]
    w = q.decode_worker
    _hold(s, r)
    q.place, q.prefill_worker = LOCAL, -1
    q.uncached = q.ask - history
    q.sent_s = now_s
    s.books[LOCAL_UNTIL_S, w] = max(s.books[LOCAL_UNTIL_S, w], now_s) + q.predicted_s
    q.pull_pending = q.reads = 0
    s.wrk[w].locals += 1
    add_request(s, w, r, LOCAL_LEG, q.output - (q.ask - q.prompt), now_s)


@kernel
def pump(s: State, w: int, now_s: float) -> None:
    """Send what the in-flight bound of a prefill worker allows; an empty engine always gets one."""
    worker = s.wrk[w]
    rule = ordering(s)
    while worker.queued + worker.lates > 0:
        r, n = look(s.req, worker, rule, now_s, flying_s(s, w, now_s), s.scratch[:ROOM])
        flying = s.seen[FLY_TOKENS, w]
        if s.seen[FLYING, w] > 0 and flying + s.req[r].uncached > worker.in_flight_tokens:
            return
        send(s.req, worker, rule, r, n, now_s, s.scratch[:ROOM])
        waited(s, w, r)
        fly(s, w, r, now_s)
        q = s.req[r]
        q.sent_s = now_s
        q.pull_pending = q.reads = 0
        if s.ctl[HISTORY_READ] and q.decode_worker >= 0:
            q.reads = history_tokens(s, q.decode_worker, r, now_s)
        add_request(s, w, r, PREFILL_LEG, 1, now_s)
        if s.ctl[REJECT]:
            _reject_late(s, w, now_s)


@kernel
def _reject_late(s: State, w: int, now_s: float) -> None:
    """Early rejection: what cannot be in time any more is refused instead of made to wait."""
    worker = s.wrk[w]
    while worker.late_head >= 0:
        r = worker.late_head
        leave_queue(s, w, r)
        unhold(s, r)
        refuse(s, r, now_s)


@kernel
def prefilled(s: State, w: int, r: int, now_s: float) -> None:
    """A prefill leg has ended on worker w: free its place, hand its KV over to the decode side."""
    q = s.req[r]
    land(s, w, r, now_s)
    if q.decode_worker < 0 and not _bind_late(s, r):
        pump(s, w, now_s)
        orphan(s, w, r, now_s)
        refuse(s, r, now_s)
        return
    q.prefilled_s = now_s
    lacking = transfer_s(
        unpack(s.data, s.bounds[s.wrk[q.decode_worker].table]), float(q.pulled_tokens)
    )
    add_sample(s, w, r, now_s - q.arrival_s + lacking)
    pump(s, w, now_s)
    revise(s, now_s)
    q.pull_pending = 1
    add_request(s, q.decode_worker, r, DECODE_LEG, q.output - (q.ask - q.prompt), now_s)


@kernel
def ended(s: State, r: int, now_s: float) -> None:
    """The last token is there."""
    unhold(s, r)
    end(s, r, SERVED_, now_s)


@kernel
def _bind_late(s: State, r: int) -> bool:
    """Its decode worker was lost during the prefill: another one, if it has room."""
    if not bind(s, r):
        s.req[r].reason = NO_DECODE_WORKER
        return False
    if too_large(s, s.req[r].decode_worker, r):
        return False
    _hold(s, r)
    return True


@kernel
def refuse(s: State, r: int, now_s: float) -> None:
    """Nobody can take it: a request is rejected, a stream that had a worker before has failed."""
    end(s, r, FAILED_ if s.req[r].migrations > 0 else REJECTED_, now_s)


@kernel
def end(s: State, r: int, status: int, now_s: float) -> None:
    """A request is over, one way or another; its follower, if it has one, comes after the pause.

    A conversation whose round failed is broken: its later rounds never come. Another stream's
    request (closed loop) comes all the same.
    """
    q = s.req[r]
    q.status, q.leg = status, ENDED
    q.finish_s = now_s
    s.ctl[OPEN] -= 1
    s.ctl[OPEN + status] += 1
    then = q.follower
    if then >= 0 and (status == SERVED_ or s.req[then].stream != q.stream):
        s.req[then].arrival_s = now_s + s.req[then].think_s
        push_later(s, key(s.req[then].arrival_s), then)
