# SPDX-License-Identifier: Apache-2.0
"""A profile of a live worker from its ForwardPassMetrics alone, before and after a slow-down.

    python experiments/check_live_fit.py [--seeds 5] [--profile dense70b_tp4] [--time-scale 0.25]

One emulated decode worker runs on a profile (it prefills, decodes and mixes both). The command
`equilibrium profile live --follow` listens to it while requests of many lengths, with and without
prefix hits, keep 1 to 32 of them in the batch. After two minutes the fit is compared with the
worker's true profile at the steps it has seen; then the worker is slowed by 1.5 and the seconds
until every one of these predictions is within 5 % of the slowed worker are taken. Times are of the
emulated clock. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from controller.config import DeploymentConfig
from controller.costs.measurements import StepMeasurements, parse_measurements
from controller.costs.model import TableCost
from controller.runtime.demo.compare import free_port
from controller.runtime.emulated.slowdown import set_slowdown
from controller.runtime.launcher import Deployment
from controller.runtime.resources import read_deployment_with, read_profile

LEARN_S, FOLLOW_S, WITHIN, SLOW = 120.0, 90.0, 0.05, 1.5
CONCURRENCY = (1, 2, 4, 8, 16, 32)
MODEL = "equilibrium/tiny"


def config_for(args: argparse.Namespace, folder: Path) -> DeploymentConfig:
    """A single decode worker that does everything."""
    return read_deployment_with(
        "local_1p2d",
        [
            ("run_dir", str(folder)),
            ("time_scale", args.time_scale),
            ("frontend.http_port", free_port()),
            ("prefill.workers", 0),
            ("decode.workers", 1),
            ("decode.emulated", {"profile": args.profile, "num_blocks": 8192}),
        ],
    )


def prompt(rng: random.Random, documents: list[str]) -> str:
    """A text of 20 to 6,000 characters (= tokens), half of them with a known beginning."""
    length = round(20 * 300 ** rng.random())
    fresh = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=length))
    known = rng.choice(documents)[: 64 * rng.randrange(1, 96)] if rng.random() < 0.5 else ""
    return known + fresh


async def keep_busy(url: str, seed: int, wall_s: float) -> None:
    """Closed loops of changing number until cancelled; each level lasts `wall_s`."""
    rng = random.Random(seed)
    documents = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=6200)) for _ in range(4)]
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        while True:
            for users in rng.sample(CONCURRENCY, len(CONCURRENCY)):
                end_s = time.monotonic() + wall_s
                await asyncio.gather(
                    *(_user(http, url, random.Random(rng.random()), documents, end_s)
                      for _ in range(users))
                )  # fmt: skip


async def _user(
    http: aiohttp.ClientSession, url: str, rng: random.Random, documents: list[str], end_s: float
) -> None:
    while time.monotonic() < end_s:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt(rng, documents)}],
            "max_tokens": rng.randrange(10, 150),
        }
        async with http.post(f"{url}/v1/chat/completions", json=body) as response:
            await response.read()
            if response.status != 200:
                raise RuntimeError(f"HTTP {response.status}")


@asynccontextmanager
async def listening(run_dir: Path, out: Path, seed: int) -> AsyncIterator[None]:
    """`equilibrium profile live --follow` beside the block."""
    command = [
        *(sys.executable, "-m", "controller", "profile", "live", "--run-dir", str(run_dir)),
        *("--follow", "--out", str(out), "--name", "learned", "--seed", str(seed)),
        *("--steps-out", str(out.with_suffix(".csv"))),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"profile live ended with {process.returncode}: {said.decode()}")


def errors(out: Path, truth: TableCost, steps: StepMeasurements) -> np.ndarray:
    """Relative errors of the written profile at `steps`; infinite while there is none."""
    if not out.exists():
        return np.array([np.inf])
    cost = read_profile(out).cost_model()
    columns = (steps.batch, steps.context, steps.chunk, steps.pairs)
    return np.abs(cost.steps_s(*columns) / truth.steps_s(*columns) - 1)


def seen(out: Path) -> StepMeasurements:
    """The steps that the listener has kept."""
    path = out.with_suffix(".csv")
    return parse_measurements(path.read_text(encoding="utf-8"), str(path))


async def follow_slowdown(
    out: Path, slowed: TableCost, steps: StepMeasurements, scale: float
) -> float | None:
    """Emulated seconds until the file is within 5 % of the slowed worker and stays there."""
    started, reached = time.monotonic(), None
    while (now_s := (time.monotonic() - started) / scale) < FOLLOW_S:
        good = errors(out, slowed, steps).max() <= WITHIN
        reached = (reached or now_s) if good else None
        await asyncio.sleep(0.25 * scale)
    return reached


async def run_seed(args: argparse.Namespace, seed: int, folder: Path) -> dict[str, Any]:
    """One deployment, one listener, one slow-down."""
    out, scale = folder / f"learned{seed}.json", args.time_scale
    truth = read_profile(args.profile).cost_model()
    async with Deployment.start(config_for(args, folder)) as deployment:
        os.environ.update(deployment.client_env)
        async with listening(deployment.run_dir, out, seed):
            load = asyncio.create_task(keep_busy(deployment.url, seed, 4.0 * scale))
            try:
                await asyncio.wait({load}, timeout=LEARN_S * scale)
                if load.done():
                    load.result()  # says why
                steps = seen(out)
                before = errors(out, truth, steps)
                await set_slowdown(deployment.run_dir, "decode-0", SLOW)
                seconds = await follow_slowdown(out, truth.scaled(SLOW), steps, scale)
            finally:
                load.cancel()
                await asyncio.gather(load, return_exceptions=True)
    return {
        "seed": seed,
        "steps": len(steps),
        "median_pct": round(100 * float(np.median(before)), 4),
        "max_pct": round(100 * float(before.max()), 4),
        "seconds_after_slowdown": None if seconds is None else round(seconds, 1),
    }


def main() -> int:
    """Run the seeds, print a line each, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--profile", default="dense70b_tp4")
    parser.add_argument("--time-scale", type=float, default=0.25)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            rows.append(asyncio.run(run_seed(args, seed, Path(folder))))
            print(rows[-1], flush=True)
    times = [row["seconds_after_slowdown"] for row in rows]
    summary = {
        "profile": args.profile,
        "median_pct": max(row["median_pct"] for row in rows),
        "max_pct": max(row["max_pct"] for row in rows),
        "seconds_after_slowdown": None if None in times else max(times),
        "seeds": rows,
    }
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
