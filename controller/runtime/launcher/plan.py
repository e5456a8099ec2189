# SPDX-License-Identifier: Apache-2.0
"""Which processes a deployment consists of: DeploymentConfig -> tuple of ProcessSpec. Pure.

Owns: names, command lines, start order, what each process registers in discovery.
Does not own: environment variables (environment.py), starting or stopping (supervisor.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from controller.config import DeploymentConfig, PoolConfig
from controller.runtime.launcher import environment

CONFIG_FILE = "config.yaml"


class Role(str, Enum):
    """What a process is for; workers and the router stop before the frontend."""

    FRONTEND = "frontend"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"


_POOLS = (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to run. Its `env` comes on top of the launcher's own environment."""

    name: str
    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    restart_limit: int = 0
    stage: int = 0
    """Processes of a stage start together; the next stage waits until they have registered."""
    endpoint: str | None = None
    """`namespace.component.endpoint` that it registers in discovery."""
    instances: int = 0
    """How many instances it registers there."""


def plan_processes(
    config: DeploymentConfig,
    run_dir: Path,
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
) -> tuple[ProcessSpec, ...]:
    """The processes of `config`, in start order. `environ` is the operator's environment.

    Frontend, router and emulated workers start together (stage 0). Real engines follow one by
    one, each a stage of its own: two that load at once compete for memory and time out. The
    router, which takes over the workers' model card and waits for it only so long, then comes
    last.
    """
    common = environment.common(config, run_dir, environ or {})
    own = {**common, **environment.own_package(environ or {})}
    specs: list[ProcessSpec] = []
    if config.frontend.launch:
        specs.append(_frontend(config, python, common))
    engines = tuple(_vllm(config, common))
    if config.router.attachment != "none":
        stage = engines[-1].stage + 1 if engines else 0
        for replica in range(config.router.replicas):
            specs.append(replace(_router(config, run_dir, python, own, replica), stage=stage))
    for role in _POOLS:
        if pool_of(config, role).engine == "emulated":
            specs.extend(_emulated(config, run_dir, role, python, own))
    return tuple(sorted((*specs, *engines), key=lambda spec: spec.stage))


def pool_of(config: DeploymentConfig, role: Role) -> PoolConfig:
    """The pool of a worker role."""
    return config.prefill if role is Role.PREFILL else config.decode


def worker_endpoint(config: DeploymentConfig, role: Role) -> str:
    """Where the workers of a pool register; what stands behind a router is out of sight."""
    return config.prefill_endpoint if role is Role.PREFILL else config.decode_endpoint


def _frontend(config: DeploymentConfig, python: str, env: Mapping[str, str]) -> ProcessSpec:
    frontend = config.frontend
    argv = [
        *(python, "-m", "dynamo.frontend"),
        *("--http-host", frontend.http_host, "--http-port", str(frontend.http_port)),
        *("--router-mode", _router_mode(config)),
        *("--migration-limit", str(frontend.migration_limit)),
        # An exact namespace: what registers in the private namespaces stays invisible.
        *("--namespace", config.dynamo.namespace),
    ]
    if frontend.session_affinity_ttl_s is not None:
        argv += ["--router-session-affinity-ttl-secs", str(frontend.session_affinity_ttl_s)]
    extra = environment.frontend_only(config)
    return ProcessSpec(
        name="frontend",
        role=Role.FRONTEND,
        argv=(*argv, *frontend.extra_args),
        env={**extra, **env},
    )


def _router_mode(config: DeploymentConfig) -> str:
    """Relays are interchangeable; which worker serves a request is decided behind them."""
    if config.router.attachment == "relay":
        return "round-robin"
    return config.frontend.router_mode


def _router(
    config: DeploymentConfig, run_dir: Path, python: str, env: Mapping[str, str], replica: int
) -> ProcessSpec:
    argv = (python, "-m", "controller", "router", "--config", str(run_dir / CONFIG_FILE))
    return ProcessSpec(
        name=f"router-{replica}" if replica else "router",
        role=Role.ROUTER,
        argv=(*argv, "--replica", str(replica)) if replica else argv,
        env=env,
        restart_limit=config.router.restart_limit,
        endpoint=config.router_endpoint,
        instances=1,
    )


def _emulated(
    config: DeploymentConfig, run_dir: Path, role: Role, python: str, env: Mapping[str, str]
) -> Iterator[ProcessSpec]:
    pool = pool_of(config, role)
    starts = range(0, pool.workers, pool.workers_per_process)
    for number, first in enumerate(starts):
        count = min(pool.workers_per_process, pool.workers - first)
        yield ProcessSpec(
            name=f"{role.value}-{number}",
            role=role,
            argv=(
                *(python, "-m", "controller", "worker", "--config", str(run_dir / CONFIG_FILE)),
                *("--role", role.value, "--index", str(first), "--count", str(count)),
            ),
            env=env,
            endpoint=worker_endpoint(config, role),
            instances=count,
        )


def _vllm(config: DeploymentConfig, env: Mapping[str, str]) -> Iterator[ProcessSpec]:
    used: set[int] = set()
    stage = 0
    for role in _POOLS:
        pool = pool_of(config, role)
        if pool.engine != "vllm":
            continue
        port = pool.vllm.side_channel_port
        for number in range(pool.workers):
            while port in used:  # both pools may have been given the same first port
                port += 1
            used.add(port)
            stage += 1
            yield ProcessSpec(
                name=f"{role.value}-{number}",
                role=role,
                argv=_vllm_argv(config, role, pool),
                env={**env, **pool.vllm.env, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)},
                stage=stage,
                endpoint=worker_endpoint(config, role),
                instances=1,
            )


def _vllm_argv(config: DeploymentConfig, role: Role, pool: PoolConfig) -> tuple[str, ...]:
    args = pool.vllm.args
    named = any(arg == "--model" or arg.startswith("--model=") for arg in args)
    return (
        *(pool.vllm.python, "-m", "dynamo.vllm"),
        *(() if named else ("--model", config.model)),
        *args,
        *("--disaggregation-mode", role.value),
        *("--endpoint", f"dyn://{worker_endpoint(config, role)}"),
    )
