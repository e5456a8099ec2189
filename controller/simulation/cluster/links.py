# SPDX-License-Identifier: Apache-2.0
"""KV on its way between workers, and what stays pinned until it has arrived.

Owns: when a pull ends, whose blocks that frees. Does not own: who pulls (admit.py).

**Contention.** Each worker has one link out and one in. A transfer occupies the source's way out
and the target's way in for bytes/bandwidth, from the first instant at which both are free; those
asked for earlier go first (FIFO a link, reserved at admission). The latency is paid on top and
occupies nothing. So the end of a transfer is known when it is asked for, exactly, at no cost; with
`contention` off it begins at once.

A prefill's decode leg is sent at once and renews the lease while it waits (docs/handover.md), so
blocks stay pinned until the pull is over. Only when the decode side is lost does a lease end:
those blocks are *orphans*, kept apart from the request, which may be prefilled again meanwhile.
"""

from __future__ import annotations

from typing import Any

from controller.costs.calls import unpack
from controller.costs.kernels import transfer_s
from controller.costs.tables import LATENCY_S
from controller.simulation.cluster.blocks import give_private, release
from controller.simulation.cluster.clock import NEVER, key, steps_until
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.decodes import start_decoding
from controller.simulation.cluster.heaps import schedule
from controller.simulation.cluster.lists import (
    append_fresh,
    append_pin,
    append_prefill,
    append_pulling,
    append_running,
    remove_pin,
    remove_pulling,
)
from controller.simulation.cluster.prefix import register
from controller.simulation.cluster.state import (
    CLOCK,
    CONTENTION,
    DRAINING,
    ORPHAN_FREE,
    ORPHANS_LEFT,
    PREFILL_LEG,
    State,
)


@kernel
def transfer_end_s(s: State, source: int, target: int, tokens: int, now_s: float) -> float:
    """When `tokens` tokens of KV have moved; the links are reserved for them."""
    if tokens <= 0:
        return now_s
    puller = s.wrk[target]
    tables = unpack(s.data, s.bounds[puller.table])
    alone_s = transfer_s(tables, float(tokens))
    if not s.ctl[CONTENTION]:
        return now_s + alone_s
    giver = s.wrk[source]
    latency_s = tables.transfer[LATENCY_S]
    free_s = max(now_s, giver.egress_s, puller.ingress_s) + (alone_s - latency_s)
    giver.egress_s = puller.ingress_s = free_s
    return float(free_s + latency_s)


@kernel
def start_pull(s: State, w: int, r: int, tokens: int, now_s: float) -> None:
    """Request r, admitted on worker w, pulls its prompt from where it was prefilled."""
    q = s.req[r]
    source = q.prefill_worker
    q.pulled_tokens = tokens
    q.pulled_s = transfer_end_s(s, source, w, tokens, now_s)
    append_pulling(s.req, s.wrk[w], r)
    q.release_s = q.pulled_s
    append_pin(s.req, s.wrk[source], r)
    expect_release(s, source, key(q.release_s))
    if s.wrk[source].life == DRAINING and not s.wrk[source].busy:
        schedule(s, source, s.ctl[CLOCK])  # it may have waited for nothing else


@kernel
def start_read(s: State, w: int, r: int, tokens: int, now_s: float) -> None:
    """Prefill r, admitted on worker w, reads history from the decode worker that it is for.

    Nothing is pinned there: what lay there when the prefill was sent is taken to stay so long.
    """
    q = s.req[r]
    q.read_tokens = tokens
    q.pulled_s = transfer_end_s(s, q.decode_worker, w, tokens, now_s)
    append_pulling(s.req, s.wrk[w], r)


@kernel
def _arrived(q: Any) -> int:
    """Tokens of the prompt that are there when a pull or a read has ended."""
    return int(q.reads if q.leg == PREFILL_LEG else q.ask - 1)


@kernel
def expect_release(s: State, w: int, instant: int) -> None:
    """Blocks of worker w become free at `instant`: whoever lacks them must try again."""
    worker = s.wrk[w]
    if worker.waiting == 0 and worker.running == 0:
        return
    if not worker.busy:
        if instant < s.due[w] or s.slot[w] < 0:
            schedule(s, w, instant)
    elif worker.waiting > 0:
        cut_steps(s, w, instant)


@kernel
def cut_steps(s: State, w: int, instant: int) -> None:
    """Plan no further than the first step that ends at `instant` or later."""
    worker = s.wrk[w]
    if worker.n <= 1:
        return
    n = steps_until(worker, instant)
    if n < worker.n:
        worker.n = n
        worker.end_s = worker.start_s + (n * worker.first_s + worker.slope_s * (0.5 * n * (n - 1)))
        schedule(s, w, key(worker.end_s))


@kernel
def settle_pins(s: State, w: int, instant: int) -> None:
    """Free what was pinned until `instant` or before."""
    worker = s.wrk[w]
    while worker.pin_head >= 0 or worker.orphan_head >= 0:
        at, orphaned = _first_release(s, worker)
        if at > instant:
            return
        if orphaned:
            free_orphan(s, w)
        else:
            r = worker.pin_head
            remove_pin(s.req, worker, r)
            unpin(s, w, r)


@kernel
def _first_release(s: State, worker: Any) -> tuple[int, bool]:
    """When the next pinned or orphaned blocks come free, NEVER; whether those are orphans."""
    at = key(s.req[worker.pin_head].release_s) if worker.pin_head >= 0 else NEVER
    if worker.orphan_head >= 0:
        ends = key(s.orphan[worker.orphan_head].release_s)
        if ends < at:
            return ends, True
    return at, False


@kernel
def next_release(s: State, worker: Any) -> int:
    """The instant at which blocks of a worker come free without its doing, or NEVER."""
    if worker.pin_head < 0 and worker.orphan_head < 0:
        return NEVER
    return _first_release(s, worker)[0]


@kernel
def orphan(s: State, w: int, r: int, now_s: float) -> None:
    """Nobody will pull what r left on worker w: it stays until its lease ends.

    Leases of one worker are equally long, so the first to begin is the first to end.
    """
    worker, q = s.wrk[w], s.req[r]
    o = s.ctl[ORPHAN_FREE]
    lost = s.orphan[o]
    s.ctl[ORPHAN_FREE] = lost.next
    s.ctl[ORPHANS_LEFT] -= 1
    lost.release_s = now_s + worker.lease_s
    lost.refs, lost.blocks, lost.registered = q.pin_refs, q.pin_blocks, q.pin_registered
    lost.next = -1
    q.pin_refs = -1
    q.pin_blocks = q.pin_registered = 0
    if worker.orphan_tail >= 0:
        s.orphan[worker.orphan_tail].next = o
    else:
        worker.orphan_head = o
    worker.orphan_tail = o
    expect_release(s, w, key(lost.release_s))


@kernel
def free_orphan(s: State, w: int) -> None:
    """The oldest orphans' lease ends."""
    worker = s.wrk[w]
    o = worker.orphan_head
    lost = s.orphan[o]
    worker.orphan_head = lost.next
    if lost.next < 0:
        worker.orphan_tail = -1
    give_private(s, w, lost.blocks - lost.registered)
    release(s, w, lost.refs)
    lost.next = s.ctl[ORPHAN_FREE]
    s.ctl[ORPHAN_FREE] = o
    s.ctl[ORPHANS_LEFT] += 1


@kernel
def unpin(s: State, w: int, r: int) -> None:
    q = s.req[r]
    give_private(s, w, q.pin_blocks - q.pin_registered)
    release(s, w, q.pin_refs)
    q.pin_refs = -1
    q.pin_blocks = q.pin_registered = 0


@kernel
def settle_pulled(s: State, w: int, instant: int) -> None:
    """Let the prefix cache know what has arrived until `instant`."""
    r = s.wrk[w].pull_head
    while r >= 0 and key(s.req[r].pulled_s) <= instant:
        register(s, w, r, _arrived(s.req[r]) // s.wrk[w].block_size)
        r = s.req[r].next


@kernel
def join_pulled(s: State, w: int, instant: int) -> None:
    """Those whose KV has arrived until `instant` decode from the next step on.

    One prompt token is left to compute, which counts as a decode. Whose history has arrived goes
    on as a prefill.
    """
    worker = s.wrk[w]
    while worker.pull_head >= 0 and key(s.req[worker.pull_head].pulled_s) <= instant:
        r = worker.pull_head
        q = s.req[r]
        remove_pulling(s.req, worker, r)
        q.computed = _arrived(q)
        register(s, w, r, q.computed // worker.block_size)
        append_running(s.req, worker, r)
        if q.leg == PREFILL_LEG:
            q.reads = q.chunk = q.chunks_done = 0
            q.pulled_s = -1.0
            if q.started_s < 0.0:
                q.started_s = instant * 1e-9
            append_prefill(s.req, worker, r)
        else:
            q.pull_pending = 0
            start_decoding(s, w, r, 0)
            append_fresh(s.req, worker, r)
