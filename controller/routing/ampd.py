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

from controller.costs.model import CostModel
from controller.types import (
    ClusterView,
    Decision,
    DecisionReason,
    Place,
    PrefillTask,
    RoutingParams,
    Slo,
)


@dataclass(frozen=True, slots=True)
class Ampd:
    """Algorithm 1. `rng` shuffles the scan; it is the rule's only state."""

    costs: CostModel
    slo: Slo
    params: RoutingParams
    rng: Random

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a place; the prefill pool must not be empty."""
        index = self._first_with_slack(view)
        if index is not None:
            worker_id = view.prefill.worker_ids[index]
            return Decision(Place.REMOTE, worker_id, DecisionReason.PREFILL_SLACK)
        if self._decode_has_slack(view):
            return Decision(Place.LOCAL, None, DecisionReason.DECODE_SLACK)
        return self._least_estimate(task, view)

    def _first_with_slack(self, view: ClusterView) -> int | None:
        limit_s = self.params.alpha * self.slo.ttft_ms / 1e3
        order = list(range(len(view.prefill.worker_ids)))
        self.rng.shuffle(order)
        return next((i for i in order if _within(view.prefill.ttft_window_s[i], limit_s)), None)

    def _decode_has_slack(self, view: ClusterView) -> bool:
        if view.bound is None:
            return False
        limit_s = self.params.beta * self.slo.itl_ms / 1e3
        return _within(view.decode.itl_window_s[view.bound], limit_s)

    def _least_estimate(self, task: PrefillTask, view: ClusterView) -> Decision:
        remote = [remote_estimate_s(self.costs, task, view, i) for i in _indices(view)]
        named = list(zip(map(str, view.prefill.worker_ids), remote, strict=True))
        best = min(range(len(remote)), key=remote.__getitem__)
        if view.bound is None:
            worker_id = view.prefill.worker_ids[best]
            return Decision(Place.REMOTE, worker_id, DecisionReason.NO_DECODE_WORKER, tuple(named))
        local_s = local_estimate_s(self.costs, task, view, view.bound)
        estimates = (("local", local_s), *named)
        if local_s <= remote[best]:
            return Decision(Place.LOCAL, None, DecisionReason.ARGMIN_LOCAL, estimates)
        worker_id = view.prefill.worker_ids[best]
        return Decision(Place.REMOTE, worker_id, DecisionReason.ARGMIN_REMOTE, estimates)


def local_estimate_s(costs: CostModel, task: PrefillTask, view: ClusterView, index: int) -> float:
    """Eq. 1: this prefill and those queued on decode worker `index`, seconds."""
    own = costs.prefill_s(task.history_tokens, task.increment_tokens)
    return own + float(view.decode.queue_s[index])


def remote_estimate_s(costs: CostModel, task: PrefillTask, view: ClusterView, index: int) -> float:
    """Eq. 2 with the prefill worker's own prefix hits as history, seconds."""
    # The last prompt token is always computed, also when the whole prompt is cached.
    cached = min(int(view.prefill.cached_tokens[index]), task.prompt_tokens - 1)
    own = costs.prefill_s(cached, task.prompt_tokens - cached)
    transfer = costs.kv_transfer_s(task.increment_tokens)
    return own + transfer + float(view.prefill.queue_s[index])


def _within(window_s: float, limit_s: float) -> bool:
    return math.isnan(window_s) or window_s <= limit_s


def _indices(view: ClusterView) -> range:
    return range(len(view.prefill.worker_ids))
