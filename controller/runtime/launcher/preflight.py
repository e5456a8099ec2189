# SPDX-License-Identifier: Apache-2.0
"""What can be found wrong before anything is started: one line each, naming the key.

Owns: checks that need this machine (ports, interpreters, profile files). What the configuration
file alone tells is checked in controller.config.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import socket
from collections.abc import Iterator, Sequence

from controller.config import DeploymentConfig, PoolConfig
from controller.errors import UserError
from controller.runtime.launcher.plan import ProcessSpec
from controller.runtime.resources import read_profile

_SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"


def check(config: DeploymentConfig, specs: Sequence[ProcessSpec]) -> None:
    """Raise UserError for the first thing that would make the start fail."""
    if config.dynamo.discovery_backend == "mem" and len(specs) > 1:
        raise UserError(
            "dynamo.discovery_backend: mem works inside one process only; use file, the default"
        )
    for key, name in _profiles(config):
        try:
            read_profile(name)
        except UserError as error:
            raise UserError(f"{key}: {error}") from None
    for key, pool in (("prefill", config.prefill), ("decode", config.decode)):
        if pool.engine == "vllm" and pool.workers and shutil.which(pool.vllm.python) is None:
            raise UserError(
                f"{key}.vllm.python: {pool.vllm.python} is not an executable program "
                "(relative paths count from the current folder)"
            )
    for key, host, port in _ports(config, specs):
        reason = port_problem(host, port)
        if reason:
            raise UserError(f"{key}: port {port} on {host} {reason}")


def port_problem(host: str, port: int) -> str | None:
    """Why a server cannot listen there, None when it can."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        return f"cannot be used: {error.strerror}"
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            # Two sockets may share an address until one of them listens.
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "is in use by another program; choose another or stop that one"
            return f"cannot be used: {error.strerror}"
    return None


def _profiles(config: DeploymentConfig) -> Iterator[tuple[str, str]]:
    if config.router.attachment != "none":
        yield "router.profile", config.router.profile
    pools: tuple[tuple[str, PoolConfig], ...] = (
        ("prefill", config.prefill),
        ("decode", config.decode),
    )
    for key, pool in pools:
        if pool.engine == "emulated":
            yield f"{key}.emulated.profile", pool.emulated.profile


def _ports(
    config: DeploymentConfig, specs: Sequence[ProcessSpec]
) -> Iterator[tuple[str, str, int]]:
    if config.frontend.launch:
        yield "frontend.http_port", config.frontend.http_host, config.frontend.http_port
    if config.router.attachment != "none" and config.router.metrics_port:
        for replica in range(config.router.replicas):
            yield "router.metrics_port", "127.0.0.1", config.router.metrics_port + replica
    for spec in specs:
        if _SIDE_CHANNEL in spec.env:
            key = f"{spec.role.value}.vllm.side_channel_port"
            yield key, "127.0.0.1", int(spec.env[_SIDE_CHANNEL])
