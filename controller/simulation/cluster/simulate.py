# SPDX-License-Identifier: Apache-2.0
"""Running a simulation, whole or in pieces.

Owns: the loop around the kernels that makes room when they ask for it. Does not own: what happens
in it (loop.py), what is read off it (result.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from controller.routing.kernels.orderings import ORDERINGS
from controller.simulation.cluster import state as at
from controller.simulation.cluster.build import add_events, build, set_params
from controller.simulation.cluster.clock import instant
from controller.simulation.cluster.events import ClusterEvent
from controller.simulation.cluster.loop import run
from controller.simulation.cluster.observe import Observation, observe
from controller.simulation.cluster.placement import PLACEMENTS, READ_WINDOWS
from controller.simulation.cluster.requeue import set_ordering
from controller.simulation.cluster.result import SimResult, collect
from controller.simulation.cluster.room import (
    grow_holdings,
    grow_log,
    grow_news,
    grow_orphans,
    grow_references,
    grow_stints,
    margin,
)
from controller.simulation.cluster.spec import (
    ClusterSpec,
    SimOptions,
    SimulationError,
    check_events,
    code,
)
from controller.simulation.workloads.workload import Workload
from controller.types import RoutingParams


class Simulation:
    """One run. `advance` may be called with growing times; `result` and `observe` at any of them.

    Between two advances a control loop may set rules and parameters, and add cluster events.
    """

    def __init__(self, workload: Workload, cluster: ClusterSpec, options: SimOptions) -> None:
        self.workload = workload
        self.cluster = cluster
        self.options = options
        self.state = build(workload, cluster, options)
        self.now_s = 0.0
        self._margin = margin(self.state)

    def advance(self, until_s: float = math.inf) -> bool:
        """Everything before `until_s`; True while something is left to come."""
        until = instant(until_s)
        while True:
            lack = run(self.state, until, self._margin)
            if lack in (at.DONE, at.PAUSED):
                self.now_s = max(self.now_s, self._reached_s(until_s))
                return bool(lack == at.PAUSED)
            self._grow(int(lack))

    @property
    def ended(self) -> int:
        """Requests that are over, one way or another."""
        ctl = self.state.ctl
        return int(ctl[at.SERVED] + ctl[at.REJECTED] + ctl[at.FAILED])

    def result(self) -> SimResult:
        """What has become of every request so far."""
        return collect(self.workload, self.cluster, self.options, self.state)

    def observe(self) -> Observation:
        """What a control loop reads now."""
        return observe(self.state, self.now_s)

    def set_params(self, params: RoutingParams) -> None:
        """From now on. A longer window fills up: what had left a shorter one is gone."""
        set_params(self.state, params)

    def set_rules(self, placement: str | None = None, ordering: str | None = None) -> None:
        """From now on; what waits at the router stays with its worker, in the new order."""
        if placement is not None:
            rule = code("placement", placement, PLACEMENTS)
            if rule in READ_WINDOWS and not self.state.ctl[at.KEEP_LOG]:
                raise SimulationError(
                    f"placement {placement!r} reads step times: start with SimOptions.gaps"
                )
            self.state.ctl[at.PLACEMENT] = rule
        if ordering is not None:
            set_ordering(self.state, code("ordering", ordering, ORDERINGS))

    def add_events(self, events: Sequence[ClusterEvent]) -> None:
        """Cluster events to come, behind those already known for the same times."""
        check_events(events, len(self.cluster.workers))
        for event in events:
            if event.at_s < self.now_s:
                raise SimulationError(
                    f"cluster: event {event.kind.value!r} at {event.at_s:g} s lies before now, "
                    f"{self.now_s:g} s"
                )
        add_events(self.state, events)

    def _reached_s(self, until_s: float) -> float:
        return float(self.state.ctl[at.CLOCK]) * 1e-9 if math.isinf(until_s) else until_s

    def _grow(self, lack: int) -> None:
        s = self.state
        if lack == at.NEED_HOLDINGS:
            grow_holdings(s, len(s.hold))
        elif lack == at.NEED_REFERENCES:
            grow_references(s, len(s.ref))
        elif lack == at.NEED_LOG:
            grow_log(s)
        elif lack == at.NEED_NEWS:
            grow_news(s)
        elif lack == at.NEED_ORPHANS:
            grow_orphans(s, max(int(s.ctl[at.OPEN]), len(s.orphan)))
        else:
            grow_stints(s)


def simulate(workload: Workload, cluster: ClusterSpec, options: SimOptions) -> SimResult:
    """Serve a workload on a cluster until `options.until_s`. Deterministic for `options.seed`."""
    simulation = Simulation(workload, cluster, options)
    simulation.advance(options.until_s)
    return simulation.result()
