# SPDX-License-Identifier: Apache-2.0
"""The ordering in force, as the compiled rules take it, and what a task's deadline is under it.

Owns: reading the rule's settings off the state. Does not own: the rules: they are
controller.routing.kernels', the very functions that the live router calls.
"""

from __future__ import annotations

from controller.costs.calls import unpack
from controller.routing.kernels import estimates
from controller.routing.kernels.orderings import ALGORITHM_2, Ordering
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.state import (
    BATCH,
    CAP,
    CONTEXT,
    LATE_SHARE,
    MAX_WAIT_S,
    ORDERING,
    TTFT_LIMIT_S,
    WINDOW,
    State,
)


@kernel
def ordering(s: State) -> Ordering:
    """The rule and its settings."""
    return Ordering(
        s.ctl[ORDERING], s.ctl[WINDOW], s.par[LATE_SHARE], s.par[MAX_WAIT_S], s.ctl[CAP]
    )


@kernel
def handover_s(s: State, r: int, history: int) -> float:
    """From the end of a remote prefill to the first token: transfer and one decode step."""
    q = s.req[r]
    w = q.decode_worker
    tables = unpack(s.data, s.bounds[s.wrk[w].table])
    batch, context = float(s.seen[BATCH, w]), float(s.seen[CONTEXT, w])
    return q.error * estimates.handover_s(
        tables, batch, context, float(q.ask), float(q.ask - history)
    )


@kernel
def prefill_due_s(s: State, r: int, history: int) -> float:
    """Latest end of the prefill. Algorithm 2 as published counts from the enqueue to that end."""
    if s.ctl[ORDERING] == ALGORITHM_2:
        return s.req[r].queued_s + s.par[TTFT_LIMIT_S]
    return s.req[r].arrival_s + s.par[TTFT_LIMIT_S] - handover_s(s, r, history)
