# SPDX-License-Identifier: Apache-2.0
"""Where a prefill runs: the inputs of the placement rules, and the call of the one in force.

Owns: the dispatch by rule code. Does not own: the rules: they are controller.routing.kernels',
the very functions that the live router calls.
"""

from __future__ import annotations

from controller.routing.kernels import dynamo
from controller.routing.kernels import placement as rules
from controller.routing.kernels.draws import decision_draw
from controller.routing.kernels.reasons import (
    ABOVE_THRESHOLD,
    ALWAYS_LOCAL,
    BELOW_THRESHOLD,
    KV_COST,
    LOCAL,
    PREFILL_FAILED,
    PREFILL_POOL_EMPTY,
)
from controller.simulation.cluster.blocks import worker_blocks
from controller.simulation.cluster.books import itl_window_s, ttft_window_s
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.estimates import (
    CACHED,
    REMOTE_S,
    first_token_estimates,
    history_tokens,
    local_s,
    prefill_time_s,
    remote_estimates,
)
from controller.simulation.cluster.prices import choose_by_deflection, choose_by_toll
from controller.simulation.cluster.state import (
    ALPHA,
    BETA,
    DECISIONS,
    FLY_TOKENS,
    ITL_LIMIT_S,
    LOCAL_CHUNK,
    PLACEMENT,
    PREFILL_POOL,
    SEED,
    TTFT_LIMIT_S,
    TURN,
    WAIT_TOKENS,
    State,
)

AMPD, ALWAYS_REMOTE, ALWAYS_LOCAL_, ROUND_ROBIN, LEAST_TTFT = range(5)
TOLL, DEFLECT, KV_ROUTER, CONDITIONAL, BATCH = range(5, 10)
PLACEMENTS = {
    "ampd": AMPD,
    "always_remote": ALWAYS_REMOTE,
    "always_local": ALWAYS_LOCAL_,
    "round_robin": ROUND_ROBIN,
    "least_ttft": LEAST_TTFT,
    "toll": TOLL,
    "batch": BATCH,
    "deflect": DEFLECT,
    "kv_cost": KV_ROUTER,
    "conditional": CONDITIONAL,
}
"""Codes of the rules, by their name in the registry of the live router."""

READ_WINDOWS = frozenset({AMPD})


@kernel
def place(s: State, r: int, fresh: bool, now_s: float) -> tuple[int, int, int]:
    """(prefill worker or -1 for local, history on the decode worker, hits on the former).

    `fresh`: the session was bound just now, so a rule may still change the decode worker.
    """
    q = s.req[r]
    q.chunk_cap, q.plan = s.ctl[LOCAL_CHUNK], 0
    rule = s.ctl[PLACEMENT]
    count = s.ctl[PREFILL_POOL]
    if count == 0 or rule == ALWAYS_LOCAL_:
        q.reason = PREFILL_POOL_EMPTY if count == 0 else ALWAYS_LOCAL
        return LOCAL, _locally(s, r, now_s), 0
    if rule == ROUND_ROBIN:
        i, q.reason = rules.round_robin(count, s.ctl[TURN])
        s.ctl[TURN] += 1
        w = s.pool[0, i]
        return int(w), 0, history_tokens(s, w, r, now_s)
    history = history_tokens(s, q.decode_worker, r, now_s)
    remote_estimates(s, r, history, now_s)
    if rule in (TOLL, BATCH):
        i, history = choose_by_toll(s, r, history, fresh, now_s)
    elif rule == DEFLECT:
        i, history = choose_by_deflection(s, r, history, fresh, now_s)
    else:
        i = _choose(s, r, rule, history, count, now_s)
    if i == LOCAL:
        if rule not in (TOLL, BATCH):  # it knows what its chunks take
            q.predicted_s = prefill_time_s(s, q.decode_worker, r, history)
        return LOCAL, history, 0
    return int(s.pool[0, i]), history, int(s.estimate[CACHED, i])


@kernel
def place_at_last(s: State, r: int, now_s: float) -> int:
    """Locally, because its prefill workers were lost; returns the history there."""
    q = s.req[r]
    q.chunk_cap, q.plan = s.ctl[LOCAL_CHUNK], 0
    q.reason = PREFILL_FAILED
    return _locally(s, r, now_s)


@kernel
def _locally(s: State, r: int, now_s: float) -> int:
    q = s.req[r]
    history = history_tokens(s, q.decode_worker, r, now_s)
    q.predicted_s = prefill_time_s(s, q.decode_worker, r, history)
    return int(history)


@kernel
def _choose(s: State, r: int, rule: int, history: int, count: int, now_s: float) -> int:
    """Index of a live prefill worker, or LOCAL, of the rules that compare estimates."""
    q = s.req[r]
    remote_s = s.estimate[REMOTE_S, :count]
    if rule == ALWAYS_REMOTE:
        i, q.reason = rules.always_remote(remote_s)
        return i
    if rule == LEAST_TTFT:
        i, q.reason = rules.least_ttft(remote_s, first_token_estimates(s, r, history, now_s))
        return i
    if rule in (KV_ROUTER, CONDITIONAL):
        return _as_dynamo(s, r, rule, history, count)
    return _ampd(s, r, history, count, now_s)


@kernel
def _as_dynamo(s: State, r: int, rule: int, history: int, count: int) -> int:
    """Dynamo's KV router, behind conditional disaggregation if that is the rule."""
    q = s.req[r]
    if rule == CONDITIONAL and dynamo.stays_local(
        float(q.ask), float(history), dynamo.EFF_ISL_THRESHOLD, dynamo.EFF_ISL_RATIO
    ):
        q.reason = BELOW_THRESHOLD
        return LOCAL
    cost = s.estimate[REMOTE_S, :count]
    for i in range(count):
        w = s.pool[0, i]
        worker = s.wrk[w]
        hit_blocks = s.estimate[CACHED, i] // worker.block_size
        active = float(s.seen[FLY_TOKENS, w] + s.seen[WAIT_TOKENS, w]) / worker.block_size
        cost[i] = dynamo.kv_cost(float(worker_blocks(worker, q.ask)), hit_blocks, active)
    q.reason = ABOVE_THRESHOLD if rule == CONDITIONAL else KV_COST
    return dynamo.cheapest(cost, 0.0, 0.0)


@kernel
def _ampd(s: State, r: int, history: int, count: int, now_s: float) -> int:
    q = s.req[r]
    windows_s = s.estimate[3, :count]
    for i in range(count):
        windows_s[i] = ttft_window_s(s, s.pool[0, i], now_s)
    draw = decision_draw(s.ctl[SEED], s.ctl[DECISIONS])
    s.ctl[DECISIONS] += 1
    itl_s = itl_window_s(s, q.decode_worker, now_s)
    ttft_limit_s = s.par[ALPHA] * s.par[TTFT_LIMIT_S]
    itl_limit_s = s.par[BETA] * s.par[ITL_LIMIT_S]
    order = s.scratch[:count]
    i, reason = rules.slack(windows_s, itl_s, True, ttft_limit_s, itl_limit_s, draw, order)
    if reason < 0:
        own_s = local_s(s, q.decode_worker, r, history, now_s)
        i, reason = rules.least_estimate(s.estimate[REMOTE_S, :count], own_s)
    q.reason = reason
    return i
