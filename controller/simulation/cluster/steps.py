# SPDX-License-Identifier: Apache-2.0
"""The end of a worker's planned steps: tokens, finished requests, what becomes of their blocks.

Owns: the effects of steps on one worker. Does not own: what happens elsewhere when a request ends
(router.py), the next composition (compose.py).

Order within the last step, as in the law: first tokens of decode legs, ends of decodes in
admission order, then the prefills of the step.
"""

from __future__ import annotations

from controller.simulation.cluster.admit import make_ready
from controller.simulation.cluster.blocks import give_private, release
from controller.simulation.cluster.clock import key
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.decodes import (
    grow_to,
    leave_decodes,
    start_decoding,
    steps_begun,
    steps_for,
    tokens_after,
)
from controller.simulation.cluster.explicit import hold_back
from controller.simulation.cluster.heaps import pop_end
from controller.simulation.cluster.links import settle_pins, settle_pulled
from controller.simulation.cluster.lists import remove_fresh, remove_prefill, remove_running
from controller.simulation.cluster.prefix import register
from controller.simulation.cluster.report import report
from controller.simulation.cluster.router import ended, prefilled
from controller.simulation.cluster.state import (
    KEEP_LOG,
    LOCAL_LEG,
    LOG_USED,
    PREFILL_LEG,
    State,
)


@kernel
def end_steps(s: State, w: int) -> None:
    """All planned steps of a worker are over."""
    worker = s.wrk[w]
    now_s = worker.end_s
    settle_pins(s, w, key(now_s))
    settle_pulled(s, w, key(now_s))  # registered before what these steps register
    worker.busy_s += now_s - worker.start_s
    worker.busy = 0
    if worker.in_batch > 0:
        advance_decodes(s, w)
    if worker.partial and worker.in_batch > 0:
        hold_back(s, w)
    if worker.in_batch > 0:
        first_tokens(s, w)
        _finish_decodes(s, w, now_s)
    if worker.chunk > 0:
        _advance_prefills(s, w, now_s)
    if worker.changed:
        report(s, w)
    make_ready(s, w, now_s)


@kernel
def advance_decodes(s: State, w: int) -> None:
    """The planned steps have brought their tokens."""
    worker = s.wrk[w]
    n = worker.n
    grow_to(s, w, n + worker.lead)
    if s.ctl[KEEP_LOG]:
        _log(s, w)
    before = steps_begun(worker)
    clock = tokens_after(worker, before + n)
    tokens = worker.in_batch * (clock - tokens_after(worker, before)) - worker.lost
    worker.context += worker.in_batch * (clock - worker.clock)
    worker.step, worker.clock = before + n, clock
    if n > 1:
        worker.ahead_context = worker.context  # with a lead: the next step was composed as these
    worker.in_flight = worker.lost = 0
    worker.made += tokens
    worker.output_tokens += tokens


@kernel
def _log(s: State, w: int) -> None:
    worker = s.wrk[w]
    at = s.ctl[LOG_USED]
    s.ctl[LOG_USED] = at + 1
    entry = s.log[at]
    entry.start_s, entry.first_s, entry.slope_s = worker.start_s, worker.first_s, worker.slope_s
    entry.step, entry.n, entry.batch = steps_begun(worker), worker.n, worker.in_batch
    entry.worker = w
    entry.next = -1
    if worker.log_tail >= 0:
        s.log[worker.log_tail].next = at
    worker.log_tail = at
    if worker.log_head < 0:
        worker.log_head, worker.log_cut = at, 0


@kernel
def first_tokens(s: State, w: int) -> None:
    """Decode legs that took part for the first time: their prompt is complete with that step."""
    worker = s.wrk[w]
    r = worker.fresh_head
    while r >= 0:
        q = s.req[r]
        after = q.peer_next
        if worker.clock > q.since:
            token_s = worker.start_s + worker.first_s
            if q.first_s < 0.0:
                q.first_s = token_s
            q.stint_s, q.stint_step = token_s, steps_for(worker, q.since) + 2
            register(s, w, r, q.ask // worker.block_size)
            remove_fresh(s.req, worker, r)
        r = after


@kernel
def _finish_decodes(s: State, w: int, now_s: float) -> None:
    worker = s.wrk[w]
    while worker.decodes > 0 and s.mem[worker.ends] <= worker.step:
        r = pop_end(s.mem, worker.ends, worker.decodes)
        leave_decodes(s, w, r)
        _finish(s, w, r, now_s)


@kernel
def _advance_prefills(s: State, w: int, now_s: float) -> None:
    worker = s.wrk[w]
    worker.prompt_tokens += worker.chunk
    r = worker.pre_head
    while r >= 0:
        q = s.req[r]
        after = q.peer_next
        if worker.lead:
            done = q.under_way > 0  # and counted as computed
        else:
            done = q.chunk > 0
            q.computed += q.chunk
            q.chunk = 0
        if done:
            q.under_way = 0
            register(s, w, r, min(q.computed, q.ask) // worker.block_size)
            if q.computed == q.target:
                remove_prefill(s.req, worker, r)
                _deliver(s, w, r, now_s)
        r = after


@kernel
def _deliver(s: State, w: int, r: int, now_s: float) -> None:
    """A prefill is complete: it yields a token."""
    worker, q = s.wrk[w], s.req[r]
    q.generated += 1
    worker.output_tokens += 1
    if q.leg != PREFILL_LEG:
        if q.first_s < 0.0:
            q.first_s = now_s
        worker.locals -= q.leg == LOCAL_LEG and q.generated == 1
        q.stint_s = now_s
        if not q.decoding:
            q.stint_step, q.end_step = worker.step + 1, worker.step
    if q.generated >= q.limit:
        _finish(s, w, r, now_s)
    elif q.decoding:
        worker.made += 1  # it was counted before its token came
    else:
        start_decoding(s, w, r, 0)


@kernel
def _finish(s: State, w: int, r: int, now_s: float) -> None:
    """A leg has all its tokens. A prefill leg's blocks stay pinned for its decode side."""
    worker, q = s.wrk[w], s.req[r]
    remove_running(s.req, worker, r)
    worker.output_tokens -= q.generated - q.limit  # drafts past the last token
    if q.leg == PREFILL_LEG:
        q.pin_refs, q.pin_blocks, q.pin_registered = q.refs, q.blocks, q.registered
        q.refs = -1
        prefilled(s, w, r, now_s)
    else:
        give_private(s, w, q.blocks - q.registered)
        release(s, w, q.refs)
        q.refs = -1
        ended(s, r, now_s)
