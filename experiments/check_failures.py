# SPDX-License-Identifier: Apache-2.0
"""kill -9 one process in mid-load, stock Dynamo against our router: who is served, who fails.

    python experiments/check_failures.py [--seeds 5] [--victims only_prefill router redis ...]
                                         [--attachments none broker relay]

Each case is an open-loop load of 12 s on emulated workers; the victim dies after 3 s. Both
deployments are started by the same launcher, which takes a dead process out of file discovery
at once, so the comparison is between routers, not launchers. `router_replica` and `redis` have two
routers over a redis-server. The last line is JSON: per victim and deployment the served share per
seed, the mean over seeds with a 95 % interval, hung requests (unfinished 40 s after the load's end;
must be 0), and for a killed router how long until one has served a request again (`routable_s`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from analysis.intervals import mean_interval
from controller.config import DeploymentConfig
from controller.routing.decision_record import DecisionRow, RouterRow, read_rows
from controller.runtime.demo.compare import free_port
from controller.runtime.launcher import Deployment
from controller.runtime.resources import read_deployment_with
from controller.runtime.router.run_files import log_name
from experiments.redis_process import Redis, redis_server

LOAD_S, KILL_AT_S, RATE = 12.0, 3.0, 5.0
HANG_S = 40.0


@dataclass(frozen=True, slots=True)
class Case:
    """One process to kill, and how many workers the deployment has."""

    victim: str
    prefill: int
    decode: int
    replicas: int = 1

    @property
    def needs_router(self) -> bool:
        """Stock has no such process."""
        return self.victim == "redis" or self.victim.startswith("router")


CASES = {
    "one_of_two_prefill": Case("prefill-0", 2, 2),
    "only_prefill": Case("prefill-0", 1, 2),
    "one_of_two_decode": Case("decode-0", 1, 2),
    "router": Case("router", 1, 2),
    "router_replica": Case("router-1", 2, 2, replicas=2),
    "redis": Case("redis", 2, 2, replicas=2),
}


def config_for(case: Case, attachment: str, folder: Path, url: str) -> DeploymentConfig:
    """The case's deployment on a free port."""
    shared = [("router.replicas", case.replicas), ("router.redis.url", url)]
    return read_deployment_with(
        "local_1p2d",
        [
            *(shared if case.replicas > 1 else []),
            ("run_dir", str(folder)),
            ("frontend.http_port", free_port()),
            ("router.attachment", attachment),
            ("router.policy", "always_remote"),
            ("prefill.workers", case.prefill),
            ("decode.workers", case.decode),
        ],
    )


async def ask(http: aiohttp.ClientSession, url: str, number: int, rng: random.Random) -> str:
    """One request; returns `ok`, `http 5xx` or the kind of error."""
    body = {
        "model": "equilibrium/tiny",
        "messages": [{"role": "user", "content": f"{number} " + "word " * rng.randrange(50, 500)}],
        "max_tokens": rng.randrange(10, 80),
    }
    try:
        async with http.post(f"{url}/v1/chat/completions", json=body) as response:
            await response.read()
            return "ok" if response.status == 200 else f"http {response.status}"
    except (aiohttp.ClientError, ConnectionError) as error:
        return type(error).__name__


async def run_case(case: Case, attachment: str, seed: int, folder: Path) -> dict[str, Any]:
    """Load with one kill; outcomes counted."""
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_server(folder)) if case.replicas > 1 else None
        url = redis.url if redis else ""
        return await _run(case, config_for(case, attachment, folder, url), redis, rng)


async def _run(
    case: Case, config: DeploymentConfig, redis: Redis | None, rng: random.Random
) -> dict[str, Any]:
    async with (
        Deployment.start(config) as deployment,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
    ):
        await ask(http, deployment.url, -1, rng)
        started, killed, tasks = time.monotonic(), False, []
        back: asyncio.Task[float] | None = None
        while (elapsed := time.monotonic() - started) < LOAD_S:
            if not killed and elapsed >= KILL_AT_S:
                if redis is not None and case.victim == "redis":
                    redis.kill()
                else:
                    os.kill(deployment.process(case.victim).pid or 0, signal.SIGKILL)
                if case.victim == "router":
                    back = asyncio.create_task(routable(deployment.run_dir, time.time()))
                killed = True
            tasks.append(asyncio.create_task(ask(http, deployment.url, len(tasks), rng)))
            await asyncio.sleep(rng.expovariate(RATE))
        _, hung = await asyncio.wait(tasks, timeout=HANG_S)
        for task in hung:
            task.cancel()
        outcomes = Counter(task.result() for task in tasks if task not in hung)
        routable_s = await back if back is not None else None
    return {
        "sent": len(tasks),
        "hung": len(hung),
        "outcomes": dict(outcomes),
        "routable_s": routable_s,
    }


async def routable(run_dir: Path, killed_unix_s: float) -> float:
    """Seconds from the kill until a router has decided about a request that came after it."""
    path = run_dir / log_name()
    while time.time() < killed_unix_s + HANG_S:
        for row in read_rows(path.read_text().splitlines()):
            if isinstance(row, RouterRow) and row.started_unix_s > killed_unix_s:
                break
        else:
            await asyncio.sleep(0.05)
            continue
        later = [
            row.arrived_unix_s
            for row in read_rows(path.read_text().splitlines())
            if isinstance(row, DecisionRow) and row.arrived_unix_s > killed_unix_s + 0.5
        ]
        if later:
            return round(min(later) - killed_unix_s, 2)
        await asyncio.sleep(0.05)
    return HANG_S


def main() -> int:
    """Run the matrix, print a line a case, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--victims", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--attachments", nargs="+", default=["none", "broker"])
    args = parser.parse_args()
    table: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.victims:
            for attachment in args.attachments:
                if attachment == "none" and CASES[name].needs_router:
                    continue
                runs = [
                    asyncio.run(run_case(CASES[name], attachment, seed, Path(folder)))
                    for seed in range(args.seeds)
                ]
                shares = [run["outcomes"].get("ok", 0) / run["sent"] for run in runs]
                cell = {
                    "served_share": mean_interval(shares),
                    "hung": sum(run["hung"] for run in runs),
                    "routable_s": [run["routable_s"] for run in runs if run["routable_s"]],
                    "outcomes": dict(sum((Counter(run["outcomes"]) for run in runs), Counter())),
                }
                table.setdefault(name, {})[attachment] = cell
                print(f"{name:20} {attachment:7} {cell}", flush=True)
    print(json.dumps(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
