# SPDX-License-Identifier: Apache-2.0
"""Placement rules to compare with: everything remote, everything local."""

from __future__ import annotations

from dataclasses import dataclass

from controller.costs.model import CostModel
from controller.routing.ampd import remote_estimate_s
from controller.types import ClusterView, Decision, DecisionReason, Place, PrefillTask


@dataclass(frozen=True, slots=True)
class AlwaysRemote:
    """Disaggregation without deflection: the prefill worker that would finish first."""

    costs: CostModel

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a prefill worker; the pool must not be empty."""
        estimates = [
            remote_estimate_s(self.costs, task, view, i)
            for i in range(len(view.prefill.worker_ids))
        ]
        best = min(range(len(estimates)), key=estimates.__getitem__)
        named = zip(map(str, view.prefill.worker_ids), estimates, strict=True)
        worker_id = view.prefill.worker_ids[best]
        return Decision(Place.REMOTE, worker_id, DecisionReason.LEAST_LOADED, tuple(named))


@dataclass(frozen=True, slots=True)
class AlwaysLocal:
    """Co-located serving: every prefill on the decode worker."""

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Always the decode worker."""
        return Decision(Place.LOCAL, None, DecisionReason.ALWAYS_LOCAL)
