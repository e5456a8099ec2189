# SPDX-License-Identifier: Apache-2.0
"""Placement rules to compare with: everything remote, everything local, in turn, least TTFT."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from controller.costs.model import CostModel, TableCost
from controller.routing.ampd import decision, named_estimates, remote_estimates_s
from controller.routing.kernels.estimates import prefill_beside_s
from controller.routing.kernels.placement import always_remote, least_ttft, round_robin
from controller.types import ClusterView, Decision, DecisionReason, Place, PrefillTask


@dataclass(frozen=True, slots=True)
class AlwaysRemote:
    """Disaggregation without deflection: the prefill worker that would finish first."""

    costs: CostModel

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
        prefill_beside_s(self.costs.tables, 0.0, 0.0, 0.0, 1.0, 1.0)

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a place; the prefill pool must not be empty."""
        remote_s = remote_estimates_s(self.costs, task, view)
        local_s = math.nan
        if view.bound is not None:
            remote_s += self._first_step_s(task, view, view.bound)
            local_s = self._local_s(task, view, view.bound)
        named = named_estimates(view, remote_s)
        if view.bound is not None:
            named = (("local", local_s), *named)
        return decision(view, *least_ttft(remote_s, local_s), named)

    def _first_step_s(self, task: PrefillTask, view: ClusterView, index: int) -> float:
        decode = view.decode
        context = int(decode.context_tokens[index]) + task.prompt_tokens
        return self.costs.step_s(int(decode.batch[index]) + 1, context, 0, 0.0)

    def _local_s(self, task: PrefillTask, view: ClusterView, index: int) -> float:
        decode = view.decode
        beside_s = prefill_beside_s(
            self.costs.tables,
            float(decode.batch[index]),
            float(decode.context_tokens[index]),
            float(task.history_tokens),
            float(task.increment_tokens),
            float(self.costs.max_chunk_tokens),
        )
        return beside_s + float(decode.queue_s[index])
