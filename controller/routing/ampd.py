# SPDX-License-Identifier: Apache-2.0
"""AMPD's adaptive routing (arXiv 2602.14516, section 3, Algorithm 1, Eq. 1 and Eq. 2).

    for i in shuffled(prefill workers):
        if TTFT_window[i] <= alpha * TTFT_limit: return remote i     # the first one with slack
    if ITL_window[bound decode] <= beta * ITL_limit: return local    # only after all failed
    return argmin { t_local, t_remote_1, t_remote_2, ... }

    t_local    = T_pre(l_hist, l_incr) + work queued on the bound decode worker       (Eq. 1)
    t_remote_i = T_pre(cached_i, rest) + T_kv(prompt) + work queued on prefill i      (Eq. 2)

Live differences from the paper: on Dynamo's vLLM the prefill worker cannot read history KV from
the decode worker, so Eq. 2 counts the prefill worker's *own* prefix hits instead of l_hist, and
the whole prompt the decode worker lacks is transferred. An empty window counts as slack, as the
paper leaves it undefined. Ties of the argmin go to local, then to the lower index.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np

from controller.costs.model import TableCost
from controller.routing.estimates import (
    decision,
    local_estimate_s,
    named_estimates,
    remote_estimates_s,
)
from controller.routing.kernels.placement import least_estimate, slack
from controller.types import ClusterView, Decision, PrefillTask, RoutingParams, Slo


@dataclass(frozen=True, slots=True)
class Ampd:
    """Algorithm 1. `rng` shuffles the scan; it is the rule's only state.

    The decisions are the compiled kernels' (controller.routing.kernels): the simulator makes them
    with the same functions. They are compiled here, not at the first request.
    """

    costs: TableCost
    slo: Slo
    params: RoutingParams
    rng: Random

    def __post_init__(self) -> None:
        one = np.zeros(1)
        slack(one, 0.0, True, 0.0, 0.0, 0, np.zeros(1, np.int64))
        least_estimate(one, 0.0)

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a place; the prefill pool must not be empty."""
        bound, slo = view.bound, task.slo or self.slo
        choice, reason = slack(
            np.ascontiguousarray(view.prefill.ttft_window_s, dtype=np.float64),
            math.nan if bound is None else float(view.decode.itl_window_s[bound]),
            bound is not None,
            self.params.alpha * (slo.ttft_ms / 1e3),
            self.params.beta * (slo.itl_ms / 1e3),
            self.rng.getrandbits(63),
            np.empty(len(view.prefill.worker_ids), np.int64),
        )
        if reason >= 0:
            return decision(view, choice, reason)
        remote_s = remote_estimates_s(self.costs, task, view)
        local_s = None
        if bound is not None:
            local_s = local_estimate_s(self.costs, task, view, bound)
        choice, reason = least_estimate(remote_s, math.nan if local_s is None else local_s)
        return decision(view, choice, reason, named_estimates(view, remote_s, local_s))
