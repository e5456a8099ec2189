# SPDX-License-Identifier: Apache-2.0
"""Whole deployments on loopback: real Dynamo, emulated workers, free ports."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from controller.config import DeploymentConfig, parse_deployment
from controller.runtime.demo.compare import free_port
from controller.runtime.launcher import Deployment

BASE = """
schema: equilibrium.deployment/1
name: e2e
slo: {ttft_ms: 1000, itl_ms: 50}
"""


def make_config(run_dir: Path, **changes: Any) -> DeploymentConfig:
    """The base deployment with `section__key=value` replaced."""
    config = parse_deployment(BASE, "test")
    updates: dict[str, Any] = {
        "run_dir": str(run_dir),
        "frontend": config.frontend.model_copy(update={"http_port": free_port()}),
    }
    config = config.model_copy(update=updates)
    for path, value in changes.items():
        config = _replaced(config, path.split("__"), value)
    return config


def _replaced(model: Any, path: list[str], value: Any) -> Any:
    head, *rest = path
    if rest:
        value = _replaced(getattr(model, head), rest, value)
    return model.model_copy(update={head: value})


class Up:
    """A running deployment and a client for it."""

    def __init__(self, deployment: Deployment, http: aiohttp.ClientSession) -> None:
        self.deployment = deployment
        self.http = http
        self.url = deployment.url

    async def chat(self, content: str, max_tokens: int = 8, **body: Any) -> dict[str, Any]:
        """One chat answer, not streamed; `status` is in it."""
        request = {
            "model": "equilibrium/tiny",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
        } | body
        timeout = aiohttp.ClientTimeout(total=60)
        async with self.http.post(
            f"{self.url}/v1/chat/completions", json=request, timeout=timeout
        ) as response:
            return {"status": response.status} | await response.json(content_type=None)

    def decisions(self) -> list[dict[str, Any]]:
        """The router's log so far."""
        path = self.deployment.run_dir / "decisions.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [row for row in rows if row["kind"] == "decision"]

    async def router_metrics(self) -> str:
        """The router's /metrics."""
        facts = json.loads((self.deployment.run_dir / "router.json").read_text())
        url = f"http://127.0.0.1:{facts['metrics_port']}/metrics"
        async with self.http.get(url) as response:
            return await response.text()


@contextlib.asynccontextmanager
async def up(run_dir: Path, **changes: Any) -> AsyncIterator[Up]:
    """A deployment that is up inside the block."""
    async with (
        Deployment.start(make_config(run_dir, **changes)) as deployment,
        aiohttp.ClientSession() as http,
    ):
        yield Up(deployment, http)
