# SPDX-License-Identifier: Apache-2.0
"""The numbers that a placement rule compares, from the simulator's state.

Owns: Eq. 1 and Eq. 2 of AMPD and the predicted TTFTs, per request. Does not own: the rules
(controller.routing.kernels), the books.

Every predicted time of a request carries that request's own error factor (evaluation rule 3):
nobody knows the real cost of a task, and the same task is misjudged the same way everywhere.
Times that describe a worker (decode step, transfer) carry it too, since they are made up of
estimates for this request.
"""

from __future__ import annotations

from controller.costs.calls import unpack
from controller.costs.kernels import prefill_s, step_s, transfer_s
from controller.costs.tables import MAX_CHUNK
from controller.routing.kernels.estimates import prefill_beside_s, queue_s
from controller.simulation.cluster.clock import key
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.decodes import grow_until
from controller.simulation.cluster.links import settle_pulled
from controller.simulation.cluster.prefix import hits, hits_along, path_of
from controller.simulation.cluster.state import (
    BATCH,
    CONTEXT,
    FLY_S,
    HISTORY_READ,
    LOCAL_UNTIL_S,
    PREFILL_POOL,
    SINCE_S,
    WAIT_S,
    State,
)

REMOTE_S = 0  # rows of `estimate`
OWN_S = 1
CACHED = 2


@kernel
def history_tokens(s: State, w: int, r: int, now_s: float) -> int:
    """Prompt tokens whose KV worker w holds at this instant."""
    worker = s.wrk[w]
    instant = key(now_s)
    settle_pulled(s, w, instant)
    # Its decodes have taken blocks since, each step when it was composed; one that is composed at
    # this very instant is so after it.
    grow_until(s, w, instant)
    return hits(s, w, r, (s.req[r].ask - 1) // worker.block_size) * worker.block_size


@kernel
def prefill_time_s(s: State, w: int, r: int, cached: int) -> float:
    """The prefill of r on worker w, alone, with `cached` tokens found there."""
    q = s.req[r]
    tables = unpack(s.data, s.bounds[s.wrk[w].table])
    cached = min(cached, q.ask - 1)
    own_s = prefill_s(tables, float(cached), float(q.ask - cached), tables.options[MAX_CHUNK])
    return own_s * q.error


@kernel
def read_time_s(s: State, w: int, r: int, tokens: int) -> float:
    """Reading history KV into prefill worker w, alone on the link (t_kv of Eq. 2, way in)."""
    return transfer_s(unpack(s.data, s.bounds[s.wrk[w].table]), float(tokens)) * s.req[r].error


@kernel
def queued_s(s: State, w: int, now_s: float) -> float:
    """What waits at the router for prefill worker w, and what flies."""
    return queue_s(s.books[WAIT_S, w], s.books[FLY_S, w], s.books[SINCE_S, w], now_s)


@kernel
def local_s(s: State, w: int, r: int, history: int, now_s: float) -> float:
    """Eq. 1: this prefill and the local ones that worker w still works off."""
    return prefill_time_s(s, w, r, history) + max(0.0, s.books[LOCAL_UNTIL_S, w] - now_s)


@kernel
def remote_estimates(s: State, r: int, history: int, now_s: float) -> None:
    """Eq. 2 for every live prefill worker, into `estimate`, with own time and hits beside it.

    Workers are mostly alike: what depends on their kind alone is kept from one to the next.
    """
    q = s.req[r]
    count = s.ctl[PREFILL_POOL]
    plain_table, plain_s = -1, 0.0
    hit_table, hit_cached, hit_s = -1, 0, 0.0
    size, limit, a, b, per_id, known = 0, 0, 0, 0, 1, 0
    for i in range(count):
        w = s.pool[0, i]
        worker = s.wrk[w]
        if worker.block_size != size:
            size = int(worker.block_size)
            limit = (q.ask - 1) // size
            a, b, per_id, known = path_of(s, r, size)
        cached = 0
        if s.ctl[HISTORY_READ]:
            settle_pulled(s, w, key(now_s))
        if worker.prefix_cache:
            cached = hits_along(s, w, r, limit, a, b, per_id, known) * size
        if s.ctl[HISTORY_READ] and history > cached:
            own_s = prefill_time_s(s, w, r, history) + read_time_s(s, w, r, history - cached)
        elif cached > 0:
            if worker.table != hit_table or cached != hit_cached:
                hit_table, hit_cached = worker.table, cached
                hit_s = prefill_time_s(s, w, r, cached)
            own_s = hit_s
        else:
            if worker.table != plain_table:
                plain_table, plain_s = worker.table, prefill_time_s(s, w, r, 0)
            own_s = plain_s
        s.estimate[OWN_S, i] = own_s
        s.estimate[CACHED, i] = cached
        s.estimate[REMOTE_S, i] = own_s + queued_s(s, w, now_s)
    transfer = transfer_s(
        unpack(s.data, s.bounds[s.wrk[q.decode_worker].table]), float(q.ask - history)
    )
    for i in range(count):
        s.estimate[REMOTE_S, i] += transfer * q.error


@kernel
def first_token_estimates(s: State, r: int, history: int, now_s: float) -> float:
    """Predicted TTFTs: adds the first decode step to Eq. 2; returns that of a local prefill."""
    q = s.req[r]
    w = q.decode_worker
    worker = s.wrk[w]
    tables = unpack(s.data, s.bounds[worker.table])
    batch, context = float(s.seen[BATCH, w]), float(s.seen[CONTEXT, w])
    step = step_s(tables, batch + 1.0, context + q.ask, 0.0, 0.0)
    for i in range(s.ctl[PREFILL_POOL]):
        s.estimate[REMOTE_S, i] += step * q.error
    beside = prefill_beside_s(
        tables, batch, context, float(history), float(q.ask - history), tables.options[MAX_CHUNK]
    )
    return beside * q.error + max(0.0, s.books[LOCAL_UNTIL_S, w] - now_s)
