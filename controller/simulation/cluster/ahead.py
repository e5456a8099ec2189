# SPDX-License-Identifier: Apache-2.0
"""Asynchronous scheduling: a step is composed when the one before it starts.

Owns: the composed step that waits for the running one to end, and what counts as computed
meanwhile. Does not own: the composition itself (batch.py), the end of steps (steps.py).

What the running step brings is under way: the next one is composed as if it was there, but it is
delivered, finishes requests and fills blocks only when the step ends. A request whose last token
is under way takes no part any more, and keeps its seat and blocks.

When all decodes are in the running step and in the next, and nothing else is, more steps can be
planned at once (compose.py). The next one of each then is the same batch again, whatever happens
before the planned ones end, and none of them is anybody's last.
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.batch import compose_batch
from controller.simulation.cluster.clock import key
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.decodes import start_decoding, tokens_after
from controller.simulation.cluster.explicit import hold_back
from controller.simulation.cluster.links import join_pulled
from controller.simulation.cluster.state import State


@kernel
def compose_ahead(s: State, w: int, now_s: float) -> None:
    """Begin the step that was composed before, or one composed now, and compose the one after."""
    worker = s.wrk[w]
    instant = key(now_s)
    if worker.ahead_batch == 0 and worker.ahead_chunk == 0:
        join_pulled(s, w, instant)
        compose_batch(s, w, now_s)
    else:
        worker.in_batch, worker.partial = worker.ahead_batch, worker.ahead_partial
        worker.batch_context = worker.ahead_context
        worker.chunk, worker.pairs = worker.ahead_chunk, worker.ahead_pairs
    if worker.in_batch == 0 and worker.chunk == 0:
        return
    _begin(s, w, now_s)
    batch, context = worker.in_batch, worker.batch_context
    chunk, pairs = worker.chunk, worker.pairs
    join_pulled(s, w, instant)
    compose_batch(s, w, now_s)
    worker.ahead_batch, worker.ahead_partial = worker.in_batch, worker.partial
    worker.ahead_context = worker.batch_context
    worker.ahead_chunk, worker.ahead_pairs = worker.chunk, worker.pairs
    worker.in_batch, worker.batch_context = batch, context
    worker.chunk, worker.pairs = chunk, pairs
    worker.partial = 0


@kernel
def settled(worker: Any) -> bool:
    """Whether the steps after the running one are the same batch, until something happens."""
    if not worker.lead:
        return True
    alike = worker.ahead_chunk == 0 and not worker.ahead_partial
    return bool(alike and worker.ahead_batch == worker.decodes == worker.in_batch)


@kernel
def _begin(s: State, w: int, now_s: float) -> None:
    """Count as computed what the step computes."""
    worker = s.wrk[w]
    if worker.in_batch > 0:
        before = worker.clock
        worker.step += 1
        worker.clock = tokens_after(worker, worker.step)
        worker.in_flight = worker.clock - before
        worker.context += worker.in_batch * worker.in_flight
        if worker.partial:
            hold_back(s, w)
    if worker.chunk > 0:
        _begin_prefills(s, w, now_s)


@kernel
def _begin_prefills(s: State, w: int, now_s: float) -> None:
    worker = s.wrk[w]
    r = worker.pre_head
    while r >= 0:
        q = s.req[r]
        if q.chunk > 0:
            q.under_way = q.chunk
            q.computed += q.chunk
            q.chunk = 0
            if q.started_s < 0.0:
                q.started_s = now_s
            if q.computed == q.target and q.generated + 1 < q.limit:
                start_decoding(s, w, r, 1)
                q.stint_s, q.stint_step = -1.0, worker.step + 1
        r = q.peer_next
