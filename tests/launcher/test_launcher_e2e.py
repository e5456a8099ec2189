# SPDX-License-Identifier: Apache-2.0
"""A real Dynamo through the launcher: stock frontend, stock mockers, the generated model.

The stock mocker stands where the emulated workers will: only the launcher is under test. The
prefill mocker behind the broker's private namespace must be out of the frontend's sight.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import pytest
from launcher_kit import MODEL, external_config, free_port, mentioning

from controller.config import DeploymentConfig
from controller.runtime.launcher import Deployment, ProcessSpec, Role, plan_here
from controller.runtime.launcher.deployment import frontend_url
from controller.runtime.launcher.readiness import look

pytestmark = pytest.mark.e2e
WORKERS = ("dynamo-prefill.prefill.generate", "dynamo.backend.generate")


def mockers(
    keep: Callable[[ProcessSpec], bool] = lambda spec: True,
) -> Callable[[DeploymentConfig, Path], Sequence[ProcessSpec]]:
    def plan(config: DeploymentConfig, run_dir: Path) -> list[ProcessSpec]:
        specs = [spec for spec in plan_here(config, run_dir) if keep(spec)]
        return [spec if spec.role is Role.FRONTEND else _mocker(spec, config) for spec in specs]

    return plan


def _mocker(spec: ProcessSpec, config: DeploymentConfig) -> ProcessSpec:
    argv = (
        *(sys.executable, "-m", "dynamo.mocker", "--model-path", config.model),
        *("--disaggregation-mode", spec.role.value, "--endpoint", f"dyn://{spec.endpoint}"),
        *("--num-workers", str(spec.instances)),
    )
    return dataclasses.replace(spec, argv=argv)


def config_with(base: Path, attachment: str, **fields: object) -> DeploymentConfig:
    pools = {
        "prefill": {"engine": "emulated"},
        "decode": {"engine": "emulated", "workers": 2, "workers_per_process": 2},
    }
    return external_config(base, free_port(), router={"attachment": attachment}, **(pools | fields))


def registered(run_dir: Path) -> list[str]:
    """What is left of the entries of file discovery."""
    root = run_dir / "discovery"
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


async def test_stock_pair_serves_when_ready_and_leaves_nothing(tmp_path: Path) -> None:
    config = config_with(tmp_path, "none", ready_timeout_s=30)
    async with Deployment.start(config, plan=mockers()) as deployment:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 5,
            "nvext": {"extra_fields": ["worker_id"]},
        }
        # At once: ready has to mean ready, with the prefill worker in use.
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{deployment.url}/v1/chat/completions", json=body) as response,
        ):
            assert response.status == 200
            answer = await response.json()
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["nvext"]["worker_id"]["prefill_worker_id"] is not None
        assert [name for name in registered(deployment.run_dir) if "backend" in name]
    run_dir = deployment.run_dir
    assert mentioning(str(run_dir)) == []
    assert registered(run_dir) == []
    assert [entry.exit_code for entry in deployment.status()] == [0, 0, 0]


async def test_private_prefill_namespace_stays_out_of_the_frontends_sight(tmp_path: Path) -> None:
    # All is there but the broker, which alone would make the model servable.
    config = config_with(tmp_path, "broker", ready_timeout_s=60)
    plan = mockers(lambda spec: spec.role is not Role.ROUTER)

    async def hold() -> None:
        async with Deployment.start(config, plan=plan):
            pytest.fail("the prefill worker was visible")

    start = asyncio.create_task(hold())
    try:
        async with aiohttp.ClientSession() as session:
            view = await look(session, frontend_url(config))
            while set(WORKERS) - set(view.instances):
                assert not start.done()
                await asyncio.sleep(0.2)
                view = await look(session, frontend_url(config))
            await asyncio.sleep(1.0)  # listing takes no longer when the worker is in sight
            view = await look(session, frontend_url(config))
        assert view.models == ()
    finally:
        start.cancel()
        await asyncio.wait({start})
    assert mentioning(str(tmp_path)) == []
