# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios one after another: same trace, same seed, same workers, fresh processes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from controller.config import DeploymentConfig
from controller.routing.decision_record import DECISION
from controller.runtime.launcher import Deployment
from controller.runtime.load import (
    Endpoint,
    LoadOptions,
    LoadResult,
    Phase,
    Progress,
    Summary,
    run_load,
    summarize,
)
from controller.runtime.router.run_files import log_name
from controller.simulation.traces import Trace

_WARM_UP_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    """One deployment to compare; `router` overrides keys of the configuration's router."""

    name: str
    title: str
    router: dict[str, Any]


SCENARIOS = (
    Scenario("stock", "stock KV router", {"attachment": "none"}),
    Scenario("always_remote", "always remote", {"policy": "always_remote"}),
    Scenario("ampd", "AMPD", {"policy": "ampd"}),
)


@dataclass(frozen=True)
class ScenarioResult:
    """What one scenario gave. `decisions` are the router's records of this trace."""

    scenario: Scenario
    load: LoadResult
    summary: Summary
    decisions: tuple[dict[str, Any], ...]
    run_dir: Path
    max_lag_ms: float | None
    """How late the emulated engines woke up at worst: above a few ms the machine was too busy."""


def scenario_config(base: DeploymentConfig, scenario: Scenario, out: Path) -> DeploymentConfig:
    """The base deployment with the scenario's router, on a free port, logging below `out`."""
    router = base.router.model_copy(update=scenario.router)
    frontend = base.frontend.model_copy(update={"http_port": free_port()})
    return base.model_copy(
        update={
            "name": scenario.name,
            "router": router,
            "frontend": frontend,
            "run_dir": str(out / "runs"),
        }
    )


async def run_scenario(
    base: DeploymentConfig,
    scenario: Scenario,
    trace: Trace,
    phases: tuple[Phase, ...],
    out: Path,
    time_limit_s: float,
    report: Callable[[str], None],
    progress: Callable[[Progress], None] | None,
    endpoint: Endpoint = Endpoint.CHAT,
) -> ScenarioResult:
    """Bring one deployment up, replay the trace, take it down."""
    config = scenario_config(base, scenario, out)
    async with Deployment.start(config, report=report) as deployment:
        await _warm_up(deployment.url, config.model)
        options = LoadOptions(
            url=deployment.url,
            slo=config.slo.value(),
            endpoint=endpoint,
            time_scale=config.time_scale,
            phases=phases,
            time_limit_s=time_limit_s,
        )
        load = await run_load(options, trace, progress)
        run_dir = deployment.run_dir
    answers = {row.response_id for row in load.rows}
    decisions = tuple(d for d in _decisions(run_dir) if d["request_id"] in answers)
    summary = summarize(load.rows, config.slo.value())
    return ScenarioResult(scenario, load, summary, decisions, run_dir, _max_lag_ms(run_dir))


async def _warm_up(url: str, model: str) -> None:
    """First requests open connections between the processes; they are not part of the trace."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "warm up"}],
        "max_tokens": 2,
    }
    async with aiohttp.ClientSession() as session:
        for _ in range(_WARM_UP_REQUESTS):
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()


def _decisions(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / log_name()
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["kind"] == DECISION]


def _max_lag_ms(run_dir: Path) -> float | None:
    lags = [
        json.loads(path.read_text(encoding="utf-8"))["max_lag_ms"]
        for path in (run_dir / "workers").glob("*.json")
    ]
    return max(lags, default=None)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
