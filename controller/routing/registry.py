# SPDX-License-Identifier: Apache-2.0
"""Names of the placement rules, and what all of them share before a rule is asked."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol, get_args

from controller.costs.model import TableCost
from controller.routing.ampd import Ampd
from controller.routing.baselines import (
    AlwaysLocal,
    AlwaysRemote,
    Conditional,
    KvCost,
    LeastTtft,
    RoundRobin,
)
from controller.routing.deflection import Deflect
from controller.routing.toll import Toll
from controller.types import (
    ClusterView,
    Decision,
    DecisionReason,
    Place,
    PlacementName,
    PrefillTask,
    RoutingParams,
    Slo,
)


class Placement(Protocol):
    """A placement rule: one decision a prefill, from the view of this instant."""

    def place(self, task: PrefillTask, view: ClusterView) -> Decision: ...


_BUILDERS: dict[str, Callable[[TableCost, Slo, RoutingParams, Random], Placement]] = {
    "toll": lambda costs, slo, params, rng: Toll(costs, slo, params),
    "batch": lambda costs, slo, params, rng: Toll(costs, slo, params),
    "deflect": lambda costs, slo, params, rng: Deflect(costs, slo, params),
    "ampd": Ampd,
    "least_ttft": lambda costs, slo, params, rng: LeastTtft(costs),
    "kv_cost": lambda costs, slo, params, rng: KvCost(),
    "conditional": lambda costs, slo, params, rng: Conditional(),
    "round_robin": lambda costs, slo, params, rng: RoundRobin(),
    "always_remote": lambda costs, slo, params, rng: AlwaysRemote(costs),
    "always_local": lambda costs, slo, params, rng: AlwaysLocal(),
}

PLACEMENTS = {name: _BUILDERS[name] for name in get_args(PlacementName)}
"""By name: what makes a rule."""


def decide(rule: Placement, task: PrefillTask, view: ClusterView) -> Decision:
    """Ask the rule, unless the hand-over contract or an empty pool leaves no choice.

    n > 1 goes local, since one hand-over handle serves one sequence (handover.md rule 4); an
    empty prefill pool means local prefill, never a failed request.
    """
    if task.sequences > 1:
        return Decision(Place.LOCAL, None, DecisionReason.MULTIPLE_SEQUENCES)
    if not view.prefill.worker_ids:
        return Decision(Place.LOCAL, None, DecisionReason.PREFILL_POOL_EMPTY)
    return rule.place(task, view)
