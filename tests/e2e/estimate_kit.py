# SPDX-License-Identifier: Apache-2.0
"""Deployments whose workers serve /metrics, stock mockers, and a real Prometheus over them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from controller.config import DeploymentConfig
from controller.runtime.demo.compare import free_port
from controller.runtime.launcher import ProcessSpec, Role, plan_here

MODEL = "equilibrium/tiny"
Plan = Callable[[DeploymentConfig, Path], list[ProcessSpec]]


def system_port() -> int:
    """A free port that Dynamo 1.4.2 takes for DYN_SYSTEM_PORT: below 32768."""
    for port in range(21000, 32000, 7):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port
    raise OSError("no free port below 32768")


_GIVEN: set[int] = set()


def with_metrics(ports: dict[str, int], stock: bool) -> Plan:
    """Every process but the frontend gets a system port, noted in `ports`; `stock`: mockers."""

    def plan(config: DeploymentConfig, run_dir: Path) -> list[ProcessSpec]:
        specs = []
        for spec in plan_here(config, run_dir):
            if spec.role is Role.FRONTEND:
                specs.append(spec)
                continue
            port = ports.setdefault(spec.name, 0) or system_port()
            ports[spec.name] = port
            env = {**spec.env, "DYN_SYSTEM_PORT": str(port)}
            argv = _mocker(spec, config) if stock else spec.argv
            specs.append(dataclasses.replace(spec, env=env, argv=argv))
        return specs

    return plan


def _mocker(spec: ProcessSpec, config: DeploymentConfig) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "dynamo.mocker", "--model-path", config.model),
        *("--disaggregation-mode", spec.role.value, "--endpoint", f"dyn://{spec.endpoint}"),
        *("--num-workers", str(spec.instances)),
    )


@contextlib.contextmanager
def prometheus(folder: Path, targets: list[str], every_s: int = 1) -> Iterator[str]:
    """A Prometheus that scrapes `host:port` targets; yields its URL. Skips where there is none."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (Debian package prometheus)")
    folder.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(f"'{target}'" for target in targets)
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {every_s}s, scrape_timeout: {every_s}s}}\n"
        f"scrape_configs: [{{job_name: dynamo, static_configs: [{{targets: [{listed}]}}]}}]\n"
    )
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(
            [
                *(binary, f"--config.file={folder / 'prometheus.yml'}"),
                *(f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


@contextlib.asynccontextmanager
async def steady_load(url: str, gap_s: float = 0.1) -> AsyncIterator[None]:
    """One short request every `gap_s` inside the block."""
    async with aiohttp.ClientSession() as http:

        async def ask(number: int) -> None:
            body = {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"{number} words " * 20}],
                "max_tokens": 8,
                "stream": True,
            }
            with contextlib.suppress(aiohttp.ClientError):
                async with http.post(f"{url}/v1/chat/completions", json=body) as response:
                    await response.read()

        async def keep_asking() -> None:
            asked = set()
            number = 0
            while True:
                number += 1
                asked.add(asyncio.create_task(ask(number)))
                asked = {task for task in asked if not task.done()}
                await asyncio.sleep(gap_s)

        asking = asyncio.create_task(keep_asking())
        try:
            yield
        finally:
            asking.cancel()
