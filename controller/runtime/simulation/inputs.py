# SPDX-License-Identifier: Apache-2.0
"""Simulation files, profiles and workloads, from disk or by shipped name.

Does not own: what is inside (controller.simulation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.costs.profile import Profile
from controller.runtime.resources import Kind, find, read, read_profile
from controller.runtime.traces import read_trace_text
from controller.simulation.config import SCHEMA, SimulationConfig, parse_simulation
from controller.simulation.workloads.named import synthetic
from controller.simulation.workloads.reading import ReadOptions, parse_workload
from controller.simulation.workloads.workload import Workload

_SYNTHETIC = "synthetic:"


def read_simulation(
    name_or_path: str | None, change: Callable[[dict[str, Any]], None]
) -> SimulationConfig:
    """A simulation or deployment file, or the defaults without one. Raises UserError."""
    if name_or_path is None:
        return parse_simulation(f"schema: {SCHEMA}", "arguments", change)
    return parse_simulation(read(Kind.SIMULATION, name_or_path), name_or_path, change)


def read_profiles(config: SimulationConfig) -> dict[str, Profile]:
    """Every profile that a file names. Raises UserError."""
    return {name: read_profile(name) for name in config.profiles}


def read_workload(argument: str, trace_format: str | None, options: ReadOptions) -> Workload:
    """A trace file, a shipped trace, or `synthetic:NAME[,KEY=VALUE...]`. Raises UserError.

    `options.seed` is that of the synthetic workload too.
    """
    if argument.startswith(_SYNTHETIC):
        return synthetic(argument.removeprefix(_SYNTHETIC), options.seed)
    path = find(Kind.TRACE, argument)
    return parse_workload(read_trace_text(path), str(path), trace_format, options)
