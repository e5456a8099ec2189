# SPDX-License-Identifier: Apache-2.0
"""One trace from one deployment file, live and in virtual time: what comparisons of both do.

Owns: serving it on either side. Does not own: what is compared.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.config import DeploymentConfig
from controller.runtime.demo.compare import Scenario, ScenarioResult, run_scenario
from controller.runtime.load import Endpoint
from controller.runtime.resources import read_profile
from controller.simulation.cluster import ClusterSpec, simulate
from controller.simulation.cluster.result import SimResult
from controller.simulation.config import SimulationConfig, simulation_of
from controller.simulation.configured import cluster_of, options_of
from controller.simulation.traces import Trace
from controller.simulation.workloads.bridge import from_trace


def serve_live(
    config: DeploymentConfig, trace: Trace, folder: Path, time_limit_s: float
) -> ScenarioResult:
    """The trace through a whole deployment, its files in `folder`."""
    return asyncio.run(
        run_scenario(
            config,
            Scenario("live", "live", {}),
            trace,
            (),
            folder,
            time_limit_s,
            lambda line: None,
            None,
            # One character is one token there; a chat template would add some.
            Endpoint.COMPLETIONS,
        )
    )


def serve_simulated(config: DeploymentConfig, trace: Trace) -> tuple[ClusterSpec, SimResult]:
    """The same in the simulator."""
    file = SimulationConfig.model_validate(simulation_of(config, "the deployment"))
    cluster = cluster_of(file, {name: read_profile(name) for name in file.profiles})
    return cluster, simulate(from_trace(trace), cluster, options_of(file))
