# SPDX-License-Identifier: Apache-2.0
"""What the toll and deflection rules compare, from the simulator's state.

Owns: prices of prefill workers and of a local prefill, chunk schedules of decode workers. Does not
own: the rules (controller.routing.kernels.toll, deflect), Eq. 1 and Eq. 2 (estimates.py).
"""

from __future__ import annotations

import math

from controller.costs.calls import unpack
from controller.costs.tables import MAX_CHUNK
from controller.routing.kernels.deflect import (
    ALPHA,
    BETA,
    LARGEST_LOG2,
    SIZES,
    deflects,
    largest_safe,
    prefill_path_s,
)
from controller.routing.kernels.forecast import with_one_more
from controller.routing.kernels.reasons import DEFLECTED, LOCAL, NOT_DEFLECTED
from controller.routing.kernels.toll import local_price, toll
from controller.simulation.cluster.blocks import worker_blocks
from controller.simulation.cluster.books import flying_s
from controller.simulation.cluster.chunks import packed
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.estimates import (
    OWN_S,
    REMOTE_S,
    history_tokens,
)
from controller.simulation.cluster.ordering import handover_s, ordering
from controller.simulation.cluster.state import (
    BATCH,
    BOOKED,
    CONTEXT,
    COST_CV,
    DECODE_POOL,
    FLY_TOKENS,
    GUARD,
    ITL_LIMIT_S,
    LEAST_CHANCE,
    LOCAL_UNTIL_S,
    MADE,
    PREFILL_POOL,
    TTFT_LIMIT_S,
    WAIT_TOKENS,
    State,
)

MISSES = 3  # row of `estimate`


@kernel
def choose_by_toll(s: State, r: int, history: int, fresh: bool, now_s: float) -> tuple[int, int]:
    """(index of a prefill worker or LOCAL, history); a fresh session may change its worker."""
    q = s.req[r]
    count = s.ctl[PREFILL_POOL]
    _remote_prices(s, r, history, now_s)
    d = _roomiest(s, r, now_s) if fresh else q.decode_worker
    at_hand = history_tokens(s, d, r, now_s) if d != q.decode_worker else history
    misses, local_s = _local_price(s, r, d, at_hand, now_s)
    i, q.reason = toll(
        s.estimate[MISSES, :count],
        s.estimate[REMOTE_S, :count],
        misses,
        local_s,
        s.par[TTFT_LIMIT_S],
    )
    if i == LOCAL and d != q.decode_worker:
        q.decode_worker = d
        s.bound[q.session] = d
    return i, at_hand if i == LOCAL else history


@kernel
def _remote_prices(s: State, r: int, history: int, now_s: float) -> None:
    """Expected misses and TTFT of each prefill worker, the latter in place of Eq. 2."""
    q = s.req[r]
    rule = ordering(s)
    after_s = handover_s(s, r, history)
    waited_s = now_s - q.arrival_s
    q.due_s = q.arrival_s + s.par[TTFT_LIMIT_S] - after_s
    cv = s.par[COST_CV]
    for i in range(s.ctl[PREFILL_POOL]):
        w = s.pool[0, i]
        q.predicted_s = s.estimate[OWN_S, i]
        busy_s = flying_s(s, w, now_s)
        cost, end_s, odds = with_one_more(s.req, s.wrk[w], rule, now_s, busy_s, cv, r)
        s.estimate[MISSES, i] = cost + 1.0 - odds
        s.estimate[REMOTE_S, i] = end_s - now_s + after_s + waited_s


@kernel
def _roomiest(s: State, r: int, now_s: float) -> int:
    """The decode worker whose local prefills end first, then with the least context."""
    best, best_s, best_context = s.req[r].decode_worker, math.inf, 0
    for i in range(s.ctl[DECODE_POOL]):
        w = s.pool[1, i]
        behind_s = max(0.0, s.books[LOCAL_UNTIL_S, w] - now_s)
        context = s.seen[BOOKED, w] + s.seen[MADE, w]
        if behind_s < best_s or (behind_s == best_s and context < best_context):
            best, best_s, best_context = w, behind_s, context
    return best


@kernel
def has_room(s: State, w: int, r: int) -> bool:
    """Whether the decode worker's blocks hold this prompt beside its decodes and local prefills.

    What is bound to it but waits elsewhere holds nothing yet: counted too, a long queue of late
    work would keep every prefill remote. Local prefills under way count as long as this one.
    """
    held = s.seen[CONTEXT, w] + s.req[r].ask * (s.wrk[w].locals + 1)
    return worker_blocks(s.wrk[w], held) <= s.wrk[w].num_blocks


@kernel
def _local_price(s: State, r: int, w: int, history: int, now_s: float) -> tuple[float, float]:
    """(expected misses, TTFT) of a local prefill on decode worker w; NaN where it may not run."""
    q, worker = s.req[r], s.wrk[w]
    tables = unpack(s.data, s.bounds[worker.table])
    batch, context = float(s.seen[BATCH, w]), float(s.seen[CONTEXT, w])
    budget = min(tables.options[MAX_CHUNK], float(worker.max_tokens))
    misses, ttft_s, chunk, own_s = local_price(
        tables,
        batch,
        context,
        float(q.ask),
        float(history),
        float(worker.locals),
        float(q.chunk_cap) if q.chunk_cap > 0 else budget,
        budget,
        s.par[GUARD] * s.par[ITL_LIMIT_S],
        max(0.0, s.books[LOCAL_UNTIL_S, w] - now_s),
        now_s - q.arrival_s,
        s.par[TTFT_LIMIT_S],
        s.par[COST_CV],
        s.par[LEAST_CHANCE],
        q.error,
    )
    if chunk == 0.0 or not has_room(s, w, r):
        return 1.0, math.nan
    q.chunk_cap, q.predicted_s = int(chunk), own_s
    return misses, ttft_s


@kernel
def choose_by_deflection(
    s: State, r: int, history: int, fresh: bool, now_s: float
) -> tuple[int, int]:
    """(index of a prefill worker or LOCAL, history); a fresh session may change its worker."""
    q = s.req[r]
    limit_s = s.par[TTFT_LIMIT_S]
    best, prefill_s = _prefill_path(s, r)
    d, decode_s, plan = -1, math.inf, 0
    for i in range(s.ctl[DECODE_POOL]):
        w = s.pool[1, i]
        if s.wrk[w].locals > 0 or (not fresh and w != q.decode_worker):
            continue
        path_s = _decode_path(s, w, r)
        if path_s < decode_s:
            d, decode_s = w, path_s
            plan = packed(LARGEST_LOG2, s.scratch[:SIZES])
    if d >= 0 and deflects(decode_s, prefill_s, limit_s, ALPHA):
        q.reason, q.plan = DEFLECTED, plan
        if d != q.decode_worker:
            q.decode_worker = d
            s.bound[q.session] = d
            history = history_tokens(s, d, r, now_s)
        return LOCAL, history
    q.reason = NOT_DEFLECTED
    return best, history


@kernel
def _prefill_path(s: State, r: int) -> tuple[int, float]:
    q = s.req[r]
    best, best_s = 0, math.inf
    for i in range(s.ctl[PREFILL_POOL]):
        w = s.pool[0, i]
        ahead = float(s.seen[FLY_TOKENS, w] + s.seen[WAIT_TOKENS, w])
        tables = unpack(s.data, s.bounds[s.wrk[w].table])
        path_s = q.error * prefill_path_s(tables, ahead, float(q.ask), float(s.wrk[w].max_tokens))
        if path_s < best_s:
            best, best_s = i, path_s
    return best, best_s


@kernel
def _decode_path(s: State, w: int, r: int) -> float:
    """TTFT_dec on worker w; its schedule's counts stay in `scratch`."""
    q = s.req[r]
    batch, context = float(s.seen[BATCH, w]), float(s.seen[CONTEXT, w])
    return q.error * largest_safe(
        unpack(s.data, s.bounds[s.wrk[w].table]),
        batch,
        context,
        float(q.ask),
        s.wrk[w].max_tokens - batch,
        BETA * s.par[ITL_LIMIT_S] / q.error,
        s.scratch[:SIZES],
    )
