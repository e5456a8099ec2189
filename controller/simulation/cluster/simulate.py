# SPDX-License-Identifier: Apache-2.0
"""Running a simulation, whole or in pieces.

Owns: the loop around the kernels that makes room when they ask for it. Does not own: what happens
in it (loop.py), what is read off it (result.py).
"""

from __future__ import annotations

import math

from controller.simulation.cluster import state as at
from controller.simulation.cluster.build import (
    build,
    grow_holdings,
    grow_log,
    grow_references,
    grow_stints,
    margin,
)
from controller.simulation.cluster.clock import NEVER
from controller.simulation.cluster.loop import run
from controller.simulation.cluster.result import SimResult, collect
from controller.simulation.cluster.spec import ClusterSpec, SimOptions
from controller.simulation.workloads.workload import Workload


class Simulation:
    """One run. `advance` may be called with growing times; `result` at any of them."""

    def __init__(self, workload: Workload, cluster: ClusterSpec, options: SimOptions) -> None:
        self.workload = workload
        self.cluster = cluster
        self.options = options
        self.state = build(workload, cluster, options)
        self._margin = margin(self.state)

    def advance(self, until_s: float = math.inf) -> bool:
        """Everything before `until_s`; True while something is left to come."""
        until = NEVER if until_s == math.inf else int(until_s * 1e9 + 0.5)
        while True:
            lack = run(self.state, until, self._margin)
            if lack in (at.DONE, at.PAUSED):
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

    def _grow(self, lack: int) -> None:
        s = self.state
        if lack == at.NEED_HOLDINGS:
            grow_holdings(s, len(s.hold))
        elif lack == at.NEED_REFERENCES:
            grow_references(s, len(s.ref))
        elif lack == at.NEED_LOG:
            grow_log(s)
        else:
            grow_stints(s)


def simulate(workload: Workload, cluster: ClusterSpec, options: SimOptions) -> SimResult:
    """Serve a workload on a cluster until `options.until_s`. Deterministic for `options.seed`."""
    simulation = Simulation(workload, cluster, options)
    simulation.advance(options.until_s)
    return simulation.result()
