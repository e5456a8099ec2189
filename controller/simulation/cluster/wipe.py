# SPDX-License-Identifier: Apache-2.0
"""A worker that is gone leaves nothing: cache, pins, lists, books, bound sessions.

Owns: the record of a worker as it is before it has served anybody. Does not own: the requests that
it had: they are elsewhere, or over, by then. Step and admission numbers go on counting: tokens of
its earlier life are still looked up by them (gaps.py).
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.blocks import (
    PRIVATE,
    append_free,
    drop_holding,
    forget,
    new_holding,
)
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.links import free_orphan, unpin
from controller.simulation.cluster.lists import remove_pin
from controller.simulation.cluster.state import BOOKS, SEEN, State


@kernel
def wipe(s: State, w: int) -> None:
    """All blocks free and unknown, nobody in any list, no session bound here."""
    worker = s.wrk[w]
    while worker.pin_head >= 0:
        r = worker.pin_head
        remove_pin(s.req, worker, r)
        unpin(s, w, r)
    while worker.orphan_head >= 0:
        free_orphan(s, w)
    _empty_cache(s, w)
    _forget_samples(s, w)
    _clear_queues(worker)
    _clear_sums(worker)
    for i in range(worker.block_size):
        s.mem[worker.residues + i] = 0
    for i in range(BOOKS):
        s.books[i, w] = 0.0
    for i in range(SEEN):
        s.seen[i, w] = 0
    for i in range(s.bound.size):
        if s.bound[i] == w:
            s.bound[i] = -1


@kernel
def _empty_cache(s: State, w: int) -> None:
    """One free run that nobody can find; all that was held has been released before."""
    worker = s.wrk[w]
    h = worker.lru_head
    while h >= 0:
        after = s.hold[h].next
        if s.hold[h].segment != PRIVATE:
            forget(s, h)
        drop_holding(s, h)
        h = after
    worker.lru_head = worker.lru_tail = -1
    worker.free = worker.num_blocks
    append_free(s, w, new_holding(s, PRIVATE, w, 0, worker.num_blocks))


@kernel
def _forget_samples(s: State, w: int) -> None:
    worker = s.wrk[w]
    r = worker.sample_head
    for _ in range(worker.samples):
        s.req[r].sampled = -1
        r = s.req[r].sample_next
    worker.samples = 0
    worker.sample_head = worker.sample_tail = -1
    worker.sample_sum_s = 0.0


@kernel
def _clear_queues(worker: Any) -> None:
    worker.run_head = worker.run_tail = worker.pre_head = worker.pre_tail = -1
    worker.fresh_head = worker.fresh_tail = worker.wait_head = worker.wait_tail = -1
    worker.pull_head = worker.pull_tail = -1
    worker.queue_head = worker.queue_tail = worker.late_head = worker.late_tail = -1
    worker.fly_head = worker.fly_tail = -1
    worker.running = worker.prefills = worker.decodes = 0
    worker.waiting = worker.pulling = worker.queued = worker.lates = worker.locals = 0
    worker.late_s = worker.credit = 0.0
    worker.log_head = -1
    worker.log_cut = 0


@kernel
def _clear_sums(worker: Any) -> None:
    worker.busy = worker.in_batch = worker.partial = 0
    worker.ahead_batch = worker.ahead_partial = worker.ahead_chunk = 0
    worker.in_flight = worker.lost = 0
    worker.chunk = 0
    worker.context = worker.made = 0
    worker.news = 0
    worker.spare = worker.changed = worker.preempting = worker.recheck = 0
    worker.bound = 0
    worker.egress_s = worker.ingress_s = 0.0
