# SPDX-License-Identifier: Apache-2.0
"""kill -9 one process in mid-load, stock Dynamo against our router: who is served, who fails.

    python experiments/check_failures.py [--seeds 5] [--victims prefill decode router ...]

Each case is an open-loop load of 12 s on emulated workers; the victim dies after 3 s. Both
deployments are started by the same launcher, which takes a dead process out of file discovery
at once, so the comparison is between routers, not launchers. The last line is JSON: per victim
and deployment the served share per seed, the mean over seeds with a 95 % interval, and hung
requests (unfinished 40 s after the load's end; must be 0).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from analysis.intervals import mean_interval
from controller.config import DeploymentConfig
from controller.runtime.demo.compare import free_port
from controller.runtime.launcher import Deployment
from controller.runtime.resources import read_deployment_with

LOAD_S, KILL_AT_S, RATE = 12.0, 3.0, 5.0
HANG_S = 40.0


@dataclass(frozen=True, slots=True)
class Case:
    """One process to kill, and how many workers the deployment has."""

    victim: str
    prefill: int
    decode: int


CASES = {
    "one_of_two_prefill": Case("prefill-0", 2, 2),
    "only_prefill": Case("prefill-0", 1, 2),
    "one_of_two_decode": Case("decode-0", 1, 2),
    "router": Case("router", 1, 2),
}


def config_for(case: Case, attachment: str, folder: Path) -> DeploymentConfig:
    """The case's deployment on a free port."""
    return read_deployment_with(
        "local_1p2d",
        [
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
    async with (
        Deployment.start(config_for(case, attachment, folder)) as deployment,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
    ):
        await ask(http, deployment.url, -1, rng)
        started, killed, tasks = time.monotonic(), False, []
        while (elapsed := time.monotonic() - started) < LOAD_S:
            if not killed and elapsed >= KILL_AT_S:
                os.kill(deployment.process(case.victim).pid or 0, signal.SIGKILL)
                killed = True
            tasks.append(asyncio.create_task(ask(http, deployment.url, len(tasks), rng)))
            await asyncio.sleep(rng.expovariate(RATE))
        _, hung = await asyncio.wait(tasks, timeout=HANG_S)
        for task in hung:
            task.cancel()
        outcomes = Counter(task.result() for task in tasks if task not in hung)
    return {"sent": len(tasks), "hung": len(hung), "outcomes": dict(outcomes)}


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
                if attachment == "none" and CASES[name].victim == "router":
                    continue
                runs = [
                    asyncio.run(run_case(CASES[name], attachment, seed, Path(folder)))
                    for seed in range(args.seeds)
                ]
                shares = [run["outcomes"].get("ok", 0) / run["sent"] for run in runs]
                cell = {
                    "served_share": mean_interval(shares),
                    "hung": sum(run["hung"] for run in runs),
                    "outcomes": dict(sum((Counter(run["outcomes"]) for run in runs), Counter())),
                }
                table.setdefault(name, {})[attachment] = cell
                print(f"{name:20} {attachment:7} {cell}", flush=True)
    print(json.dumps(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
