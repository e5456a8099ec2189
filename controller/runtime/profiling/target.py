# SPDX-License-Identifier: Apache-2.0
"""Whose forward passes are followed: a run of ours, a deployment file, or any Dynamo workers.

Owns: turning what the operator names into endpoints and the settings of Dynamo's runtime. Does
not own: listening (live).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from controller.config import DeploymentConfig, DynamoConfig
from controller.errors import UserError
from controller.runtime.launcher import environment
from controller.runtime.launcher.plan import CONFIG_FILE
from controller.runtime.resources import read_deployment_with


class PoolChoice(str, Enum):
    """Which pools are fitted together."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class LiveTarget:
    """Where passes come from."""

    endpoints: tuple[str, ...]
    """`namespace.component.endpoint`, each."""
    dynamo: DynamoConfig
    environ: Mapping[str, str] = field(default_factory=dict)
    """To be set before Dynamo is loaded."""
    time_scale: float = 1.0
    """Wall seconds per second of the deployment's own clock."""


def of_run(run_dir: Path, pools: PoolChoice) -> LiveTarget:
    """A run that `equilibrium up` made (its folder, or runs/latest). Raises UserError."""
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise UserError(
            f"run folder {run_dir} has no {CONFIG_FILE}; name one of `equilibrium up`, or "
            "--config, --endpoint or --namespace"
        )
    config = read_deployment_with(path)
    return _of(config, pools, environment.common(config, run_dir.resolve(), os.environ))


def of_config(name_or_path: str, pools: PoolChoice) -> LiveTarget:
    """A deployment file whose workers run already. Raises UserError."""
    config = read_deployment_with(name_or_path)
    dynamo = config.dynamo
    if dynamo.discovery_backend == "file" and dynamo.file_kv is None:
        raise UserError(
            f"{name_or_path}: file discovery without dynamo.file_kv lies in the run folder; "
            "give --run-dir"
        )
    return _of(config, pools, environment.common(config, Path.cwd(), os.environ))


def of_names(
    namespace: str | None, endpoints: Sequence[str], dynamo: DynamoConfig, pools: PoolChoice
) -> LiveTarget:
    """Workers by name: endpoints as given, or a namespace's usual ones. Raises UserError."""
    for path in endpoints:
        if len([part for part in path.split(".") if part]) != 3:
            raise UserError(f"--endpoint {path}: expected namespace.component.endpoint")
    if not endpoints:
        usual = {PoolChoice.PREFILL: "prefill", PoolChoice.DECODE: "backend"}
        wanted = usual.values() if pools is PoolChoice.BOTH else [usual[pools]]
        endpoints = [f"{namespace}.{component}.generate" for component in wanted]
    return LiveTarget(endpoints=tuple(endpoints), dynamo=dynamo)


def _of(config: DeploymentConfig, pools: PoolChoice, environ: Mapping[str, str]) -> LiveTarget:
    paths = {
        PoolChoice.PREFILL: config.prefill_endpoint,
        PoolChoice.DECODE: config.decode_endpoint,
    }
    wanted = paths.values() if pools is PoolChoice.BOTH else [paths[pools]]
    return LiveTarget(tuple(wanted), config.dynamo, environ, config.time_scale)
