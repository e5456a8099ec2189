# SPDX-License-Identifier: Apache-2.0
"""Placement rules to compare with: all remote, all local, in turn, least TTFT, Dynamo's own.

Owns: what each rule reads of a view. Does not own: the rules themselves (routing/kernels).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from controller.costs.model import TableCost
from controller.routing.estimates import (
    decision,
    first_step_s,
    named_estimates,
    remote_estimates_s,
)
from controller.routing.kernels import dynamo
from controller.routing.kernels.entries import beside_s
from controller.routing.kernels.placement import always_remote, least_ttft, round_robin
from controller.routing.kernels.reasons import ABOVE_THRESHOLD, BELOW_THRESHOLD, KV_COST, LOCAL
from controller.types import ClusterView, Decision, DecisionReason, Place, PrefillTask


@dataclass(frozen=True, slots=True)
class AlwaysRemote:
    """Disaggregation without deflection: the prefill worker that would finish first."""

    costs: TableCost

    def __post_init__(self) -> None:
        always_remote(np.zeros(1))

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a prefill worker; the pool must not be empty."""
        remote_s = remote_estimates_s(self.costs, task, view)
        return decision(view, *always_remote(remote_s), named_estimates(view, remote_s))


@dataclass(frozen=True, slots=True)
class AlwaysLocal:
    """Co-located serving: every prefill on the decode worker."""

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Always the decode worker."""
        return Decision(Place.LOCAL, None, DecisionReason.ALWAYS_LOCAL)


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Prefill workers in turn, whatever their state."""

    turns: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        round_robin(1, 0)

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a prefill worker; the pool must not be empty."""
        return decision(view, *round_robin(len(view.prefill.worker_ids), next(self.turns)))


@dataclass(frozen=True, slots=True)
class LeastTtft:
    """The place with the least predicted time to the first token.

    remote_i = Eq. 2 + the first decode step in the bound worker's batch
    local    = the prefill in chunks beside that batch + what is queued there

    Without a known decode worker the estimates are Eq. 2 alone and local is no choice.
    """

    costs: TableCost

    def __post_init__(self) -> None:
        least_ttft(np.zeros(1), 0.0)
        beside_s(*self.costs.packed, 0.0, 0.0, 0.0, 1.0)

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a place; the prefill pool must not be empty."""
        remote_s = remote_estimates_s(self.costs, task, view)
        local_s = None
        if view.bound is not None:
            remote_s += first_step_s(self.costs, task, view)
            local_s = self._local_s(task, view, view.bound)
        choice, reason = least_ttft(remote_s, math.nan if local_s is None else local_s)
        return decision(view, choice, reason, named_estimates(view, remote_s, local_s))

    def _local_s(self, task: PrefillTask, view: ClusterView, index: int) -> float:
        decode = view.decode
        own_s = beside_s(
            *self.costs.packed,
            float(decode.batch[index]),
            float(decode.context_tokens[index]),
            float(task.history_tokens),
            float(task.increment_tokens),
        )
        return own_s + float(decode.queue_s[index])


@dataclass(frozen=True, slots=True)
class KvCost:
    """Dynamo's KV router: least of the blocks to compute and the blocks in flight."""

    def __post_init__(self) -> None:
        one, cost = np.ones(1, np.int64), np.zeros(1)
        dynamo.kv_costs(1, 1, one, one, cost)
        dynamo.cheapest(cost, 0.0, 0.0)

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a prefill worker; the pool must not be empty."""
        return self.remote(task, view, KV_COST)

    def remote(self, task: PrefillTask, view: ClusterView, reason: int) -> Decision:
        """The same, with the reason of whoever asks."""
        pool = view.prefill
        cost = np.empty(len(pool.worker_ids))
        dynamo.kv_costs(task.prompt_tokens, pool.block_size, pool.cached_tokens, pool.tokens, cost)
        return decision(view, dynamo.cheapest(cost, 0.0, 0.0), reason)


@dataclass(frozen=True, slots=True)
class Conditional:
    """Dynamo's conditional disaggregation: local where little of the prompt is lacking."""

    kv_cost: KvCost = field(default_factory=KvCost)

    def __post_init__(self) -> None:
        dynamo.stays_local(1.0, 1.0, dynamo.EFF_ISL_THRESHOLD, dynamo.EFF_ISL_RATIO)

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a place; the prefill pool must not be empty."""
        local = view.bound is not None and dynamo.stays_local(
            float(task.prompt_tokens),
            float(task.history_tokens),
            dynamo.EFF_ISL_THRESHOLD,
            dynamo.EFF_ISL_RATIO,
        )
        if local:
            return decision(view, LOCAL, BELOW_THRESHOLD)
        return self.kv_cost.remote(task, view, ABOVE_THRESHOLD)
