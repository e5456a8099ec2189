# SPDX-License-Identifier: Apache-2.0
"""What becomes of requests when a worker is gone, as behind our live router.

Owns: who loses what. Does not own: the worker itself (lifecycle.py, wipe.py), placing the
requests again: they come to the router once more at the same instant, in the order of their rows.

A **prefill worker** takes with it:
- prefills that wait for it at the router, or that it was sent: each is placed a second time, and
  after a second loss its decode worker prefills (runtime/router/core.py);
- prompts that it holds for a pull that has not ended: the decode leg fails. It may be tried once
  more, prefill and all, which counts as a migration (runtime/router/streams.py).

A **decode worker** takes with it:
- streams, also those that wait there or still pull: a stream that may still migrate goes on
  elsewhere, with prompt and generated tokens as its new prompt (runtime/router/migration.py);
  otherwise the request has failed;
- the binding of its sessions, and with its cache their history (wipe.py).
Prefills under way for it are not lost: they find another decode worker when they end, as behind a
broker. Only one that still has to read its history from there has failed, and is placed again.
What had been prefilled for it stays pinned: nobody renews the lease any more, and nobody can tell
the prefill worker, so the blocks come free when the lease ends (handover.md, rule 2).
"""

from __future__ import annotations

from controller.simulation.cluster.admit import wake
from controller.simulation.cluster.blocks import give_private, release
from controller.simulation.cluster.books import land
from controller.simulation.cluster.clock import key, steps_until
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.decodes import grow_until, leave_decodes
from controller.simulation.cluster.drain import (
    give_up_queue,
    look_again,
    place_anew,
    set_adrift,
    unhold,
)
from controller.simulation.cluster.explicit import close_stint
from controller.simulation.cluster.links import orphan, settle_pins
from controller.simulation.cluster.lists import remove_pin, remove_pulling, remove_waiting
from controller.simulation.cluster.router import end, pump
from controller.simulation.cluster.state import (
    CLOCK,
    DECODES,
    FAILED_,
    MIGRATION_LIMIT,
    PREFILLS,
    STARTING,
    State,
)
from controller.simulation.cluster.steps import advance_decodes, first_tokens


@kernel
def lose_work(s: State, w: int) -> None:
    """Worker w is gone; its own record is not touched beyond its last tokens."""
    _stop(s, w)
    if s.wrk[w].role == PREFILLS:
        _lose_prefills(s, w)
        for d in range(s.wrk.size):
            if s.wrk[d].role == DECODES and s.wrk[d].life < STARTING:
                _lose_handovers(s, w, d)
    else:
        for p in range(s.wrk.size):
            if s.wrk[p].role == PREFILLS and s.wrk[p].life < STARTING:
                _unbind_prefills(s, w, p)
        _lose_streams(s, w)


@kernel
def _stop(s: State, w: int) -> None:
    """The steps that ended before this instant have brought their tokens."""
    worker = s.wrk[w]
    if not worker.busy:
        return
    done = steps_until(worker, s.ctl[CLOCK]) - 1
    worker.busy_s += s.ctl[CLOCK] * 1e-9 - worker.start_s
    worker.busy = 0
    if done > 0 and worker.in_batch > 0:
        worker.n = done
        advance_decodes(s, w)
        first_tokens(s, w)


@kernel
def _lose_prefills(s: State, w: int) -> None:
    give_up_queue(s, w)
    r = s.wrk[w].fly_head
    while r >= 0:
        after = s.req[r].fly_next
        release(s, w, s.req[r].refs)
        s.req[r].refs = -1
        place_anew(s, r)
        r = after


@kernel
def _lose_handovers(s: State, w: int, d: int) -> None:
    """Decode legs on worker d whose prompt lay on worker w."""
    decode = s.wrk[d]
    lost = False
    r = decode.wait_head
    while r >= 0:
        after = s.req[r].next
        if s.req[r].pull_pending and s.req[r].prefill_worker == w:
            lost = True
            remove_waiting(s.req, decode, r)
            release(s, w, s.req[r].pin_refs)
            s.req[r].pin_refs = -1
            _load_again(s, r)
        r = after
    r = decode.pull_head
    while r >= 0:
        after = s.req[r].next
        if s.req[r].prefill_worker == w and key(s.req[r].pulled_s) >= s.ctl[CLOCK]:
            lost = True
            _stop_pull(s, d, r)
            _load_again(s, r)
        r = after
    if lost:
        wake(s, d, s.ctl[CLOCK] * 1e-9)


@kernel
def _stop_pull(s: State, d: int, r: int) -> None:
    """A pull into worker d fails; its blocks are free again."""
    decode, q = s.wrk[d], s.req[r]
    # What the running decodes have taken since comes off the free list before.
    grow_until(s, d, s.ctl[CLOCK])
    remove_pulling(s.req, decode, r)
    give_private(s, d, q.blocks - q.registered)
    release(s, d, q.refs)
    q.refs = -1


@kernel
def _load_again(s: State, r: int) -> None:
    """A decode leg without its KV is tried once more, where a migration is allowed."""
    unhold(s, r)
    if s.req[r].reloaded:
        end(s, r, FAILED_, s.ctl[CLOCK] * 1e-9)
    else:
        s.req[r].reloaded = 1
        _migrate(s, r)


@kernel
def _migrate(s: State, r: int) -> None:
    """Prompt and generated tokens are the prompt of the next leg."""
    q = s.req[r]
    if q.migrations >= s.ctl[MIGRATION_LIMIT]:
        end(s, r, FAILED_, s.ctl[CLOCK] * 1e-9)
        return
    q.migrations += 1
    q.tries = 0
    q.ask += q.generated
    set_adrift(s, r)


@kernel
def _unbind_prefills(s: State, d: int, p: int) -> None:
    """Prefills at worker p for decode worker d: another one is found at their end."""
    settle_pins(s, p, s.ctl[CLOCK] - 1)
    _unbind_queue(s, d, s.wrk[p].queue_head)
    _unbind_queue(s, d, s.wrk[p].late_head)
    r = s.wrk[p].fly_head
    while r >= 0:
        after = s.req[r].fly_next
        if s.req[r].decode_worker == d and _reads_on(s, r):
            _lose_read(s, p, r)
        else:
            _unbind(s, d, r)
        r = after
    pump(s, p, s.ctl[CLOCK] * 1e-9)


@kernel
def _reads_on(s: State, r: int) -> bool:
    """Whether a prefill that was sent still needs history from its decode worker.

    That is known once it is admitted; before, what its prefix cache may hold does not count.
    """
    q = s.req[r]
    return bool(q.reads > 0 and (q.pulled_s < 0.0 or key(q.pulled_s) >= s.ctl[CLOCK]))


@kernel
def _lose_read(s: State, p: int, r: int) -> None:
    """A prefill cannot read its history: it has failed, as if its worker had."""
    q = s.req[r]
    if q.pulled_s < 0.0:
        remove_waiting(s.req, s.wrk[p], r)
    else:
        _stop_pull(s, p, r)
    land(s, p, r, s.ctl[CLOCK] * 1e-9)
    place_anew(s, r)
    wake(s, p, s.ctl[CLOCK] * 1e-9)


@kernel
def _unbind_queue(s: State, d: int, r: int) -> None:
    while r >= 0:
        _unbind(s, d, r)
        r = s.req[r].next


@kernel
def _unbind(s: State, d: int, r: int) -> None:
    if s.req[r].decode_worker == d:
        s.req[r].decode_worker = -1
        s.req[r].pulled_tokens = s.req[r].ask


@kernel
def _lose_streams(s: State, w: int) -> None:
    worker = s.wrk[w]
    r = worker.run_head
    while r >= 0:
        q = s.req[r]
        after = q.next
        if q.decoding:
            leave_decodes(s, w, r)
            if q.generated > 0:
                close_stint(s, w, r)
        _move(s, w, r)
        r = after
    r = worker.pull_head
    while r >= 0:
        q = s.req[r]
        after = q.next
        if key(q.pulled_s) >= s.ctl[CLOCK]:
            remove_pin(s.req, s.wrk[q.prefill_worker], r)
            _strand(s, r)
        _move(s, w, r)
        r = after
    r = worker.wait_head
    while r >= 0:
        after = s.req[r].next
        if s.req[r].pull_pending:
            _strand(s, r)
        _move(s, w, r)
        r = after


@kernel
def _strand(s: State, r: int) -> None:
    orphan(s, s.req[r].prefill_worker, r, s.ctl[CLOCK] * 1e-9)
    look_again(s, s.req[r].prefill_worker)


@kernel
def _move(s: State, w: int, r: int) -> None:
    release(s, w, s.req[r].refs)
    s.req[r].refs = -1
    _migrate(s, r)
