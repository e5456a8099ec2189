# SPDX-License-Identifier: Apache-2.0
"""A deployment as an object: up inside `async with`, gone after it, whatever happens between.

    async with Deployment.start(config, report=print) as deployment:
        ...  # deployment.url, deployment.run_dir, deployment.process("decode-0").pid

Owns: the order of the start, its bound, the certainty of the stop.
Does not own: signals (signals.py turns them into cancellation), printing (the `report` given).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from controller.config import DeploymentConfig
from controller.runtime.launcher import environment, kernels, preflight
from controller.runtime.launcher.child import Child
from controller.runtime.launcher.discovery_files import forget_dead
from controller.runtime.launcher.errors import LaunchError
from controller.runtime.launcher.plan import ProcessSpec, plan_processes
from controller.runtime.launcher.readiness import wait_until_ready
from controller.runtime.launcher.run_folder import RunFolder
from controller.runtime.launcher.supervisor import ProcessStatus, Report, Supervisor
from controller.runtime.tiny_model import ensure_tiny_model

STOP_TIMEOUT_S = 10.0
Plan = Callable[[DeploymentConfig, Path], Sequence[ProcessSpec]]


def plan_here(config: DeploymentConfig, run_dir: Path) -> tuple[ProcessSpec, ...]:
    """`plan_processes` with this process's interpreter and environment."""
    return plan_processes(config, run_dir, environ=os.environ)


def base_folder(config: DeploymentConfig) -> Path:
    """The folder below which runs are made."""
    return Path(config.run_dir).expanduser().absolute()


def frontend_url(config: DeploymentConfig) -> str:
    """Where a client on this machine reaches the frontend."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(
        config.frontend.http_host, config.frontend.http_host
    )
    return f"http://{f'[{host}]' if ':' in host else host}:{config.frontend.http_port}"


class Deployment:
    """A deployment that is up. Made by `start`."""

    def __init__(
        self,
        config: DeploymentConfig,
        folder: RunFolder,
        specs: Sequence[ProcessSpec],
        report: Report,
    ) -> None:
        self.config = config
        self.url = frontend_url(config)
        self.run_dir = folder.path
        self.client_env = environment.model_access(config, folder.path)
        """What a client's tokenizer needs to resolve the model's name (aiperf, transformers)."""
        self.ready_after_s: float | None = None
        self._specs, self._report = specs, report
        self._supervisor = Supervisor(
            folder,
            self.url,
            environment.inherited(os.environ),
            self._safe_report,
            after_death=self._forget_dead,
        )

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        config: DeploymentConfig,
        *,
        report: Report = lambda line: None,
        plan: Plan = plan_here,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> AsyncIterator[Deployment]:
        """Bring it up, hand it over when it serves, take it down at the end of the block.

        Raises UserError before anything is started (port in use, unknown profile), LaunchError
        when a process ends early or the bound passes; nothing is left running then. The bound,
        `ready_timeout_s`, counts for each stage of the plan. Cancelling stops it in order;
        cancelling again while it stops kills at once.
        """
        preflight.check(config, plan(config, base_folder(config) / config.name))
        folder = RunFolder.create(base_folder(config), config.name)
        deployment = cls(config, folder, plan(config, folder.path), report)
        try:
            await deployment._bring_up(folder)
            yield deployment
        finally:
            await _stop_for_certain(deployment._supervisor, stop_timeout_s)

    def process(self, name: str) -> Child:
        """One process by name (`frontend`, `router`, `prefill-0`, `decode-1`)."""
        return self._supervisor.children[name]

    def status(self) -> tuple[ProcessStatus, ...]:
        """What became of each process."""
        return self._supervisor.status()

    async def failed(self) -> str:
        """Wait until the deployment cannot go on; returns why."""
        return await asyncio.shield(self._supervisor.failure)

    async def _bring_up(self, folder: RunFolder) -> None:
        started_s = time.monotonic()
        self._safe_report(f"run folder {folder.path}")
        self._write_files(folder)
        if any(spec.name != "frontend" for spec in self._specs):
            await kernels.prepare(self._safe_report)
            started_s = time.monotonic()
        stages = sorted({spec.stage for spec in self._specs}) or [0]
        for stage in stages:
            specs = [spec for spec in self._specs if spec.stage == stage]
            names = ", ".join(spec.name for spec in specs)
            self._safe_report(f"starting {names}" if specs else f"waiting for {self.url}")
            await self._supervisor.start(specs)
            so_far = [spec for spec in self._specs if spec.stage <= stage]
            await self._ready(so_far, self.config.model if stage == stages[-1] else None)
            if stage != stages[-1]:
                elapsed_s = time.monotonic() - started_s
                self._safe_report(f"registered after {elapsed_s:.1f} s")
        self._supervisor.settle()
        self.ready_after_s = time.monotonic() - started_s

    def _write_files(self, folder: RunFolder) -> None:
        try:
            folder.write_config(self.config)
            home = environment.tiny_model_home(self.config, folder.path)
            if home is not None:
                real = "vllm" in (self.config.prefill.engine, self.config.decode.engine)
                ensure_tiny_model(home, weights=real, name=self.config.model)
            if self.config.dynamo.discovery_backend == "file":
                discovery = environment.discovery_folder(self.config, folder.path)
                discovery.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(f"cannot write what the processes need: {error}") from None

    def _forget_dead(self, spec: ProcessSpec) -> None:
        if spec.endpoint and self.config.dynamo.discovery_backend == "file":
            forget_dead(environment.discovery_folder(self.config, self.run_dir), spec.endpoint)

    async def _ready(self, specs: Sequence[ProcessSpec], model: str | None) -> None:
        failure, timeout_s = self._supervisor.failure, self.config.ready_timeout_s
        waiting = asyncio.create_task(wait_until_ready(self.url, specs, model, timeout_s))
        try:
            either: set[asyncio.Future[Any]] = {waiting, failure}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                raise LaunchError(failure.result())
            missing = waiting.result()
        finally:
            waiting.cancel()
        if missing:
            raise LaunchError(
                f"not ready after {timeout_s:g} s (ready_timeout_s): {'; '.join(missing)}; "
                f"logs are below {self.run_dir}"
            )

    def _safe_report(self, line: str) -> None:
        # A closed terminal must not keep the deployment from being taken down.
        with contextlib.suppress(OSError, ValueError):
            self._report(line)


async def _stop_for_certain(supervisor: Supervisor, timeout_s: float) -> None:
    """Finish the stop even when cancelled; a cancellation makes it kill at once."""
    stopping = asyncio.create_task(supervisor.stop(timeout_s))
    cancelled: asyncio.CancelledError | None = None
    while not stopping.done():
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError as error:
            cancelled = error
            supervisor.hurry()
    if cancelled is not None:
        raise cancelled
    stopping.result()
