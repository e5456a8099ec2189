# SPDX-License-Identifier: Apache-2.0
"""Thousands of streams at once, and a hundred thousand sessions: nobody is lost, nothing leaks.

    python experiments/check_streams.py [--streams 2048] [--replicas 1] [--tokens 16]
    python experiments/check_streams.py --streams 4096 --replicas 2     # over a redis-server
    python experiments/check_streams.py --sessions 100000               # memory, in one process

With --streams: so many streams are opened at once through relays on a deployment of emulated
workers that cost nothing. Every one must be answered, or refused with HTTP 503 or 529; afterwards
the routers' gauges of what they hold must all be 0. With --sessions: requests of so many sessions
through the relay's own classes over workers without processes; the memory of the process after the
first fifth (bounded memories are full by then) and at the end.

The last line is JSON: `answered`, `refused`, `lost`, `held_after` (the gauges' sum), `rss_mb`; or
`sessions`, `rss_mb_early`, `rss_mb_late`, `held_after`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from controller.errors import UserError
from controller.runtime.launcher import Deployment, LaunchError
from controller.runtime.router.run_files import facts_name
from experiments.memory_sessions import run_sessions
from experiments.redis_process import redis_server
from experiments.router_bench_kit import ask, deployment, open_http

HELD = (
    "streams",
    "open_requests",
    "queue_waiting",
    "prefills_in_flight",
    "pinned_blocks",
    "places_asked",
    "places_given",
)
SETTLE_S = 20.0


def changes(replicas: int, url: str | None) -> dict[str, Any]:
    """The deployment's keys."""
    keys: dict[str, Any] = {
        "router.attachment": "relay",
        "router.policy": "toll",
        "prefill.workers": 2,
        "decode.workers": 2,
        "slo.ttft_ms": 60_000,
        "router.replicas": replicas,
        # The frontend takes a router that acknowledges a request later than this for dead (5 s by
        # default): thousands of requests in one instant are more work than two cores do in that.
        "dynamo.env.DYN_TCP_REQUEST_TIMEOUT": "60",
    }
    for pool in ("prefill", "decode"):
        keys[f"{pool}.emulated.slowdown"] = 0.001
        keys[f"{pool}.emulated.max_num_seqs"] = 4096
        keys[f"{pool}.emulated.num_blocks"] = 65536
    if url is not None:
        keys["router.redis.url"] = url
    return keys


async def gauges(http: aiohttp.ClientSession, run_dir: Path, replicas: int) -> dict[str, float]:
    """What the routers hold, summed; and their memory."""
    sums: Counter[str] = Counter()
    for replica in range(replicas):
        port = json.loads((run_dir / facts_name(replica)).read_text())["metrics_port"]
        async with http.get(f"http://127.0.0.1:{port}/metrics") as response:
            for line in (await response.text()).splitlines():
                family, _, value = line.partition(" ")
                if family.removeprefix("dynamo_equilibrium_") in HELD:
                    sums[family.removeprefix("dynamo_equilibrium_")] += float(value)
    return dict(sums)


def rss_mb(running: Deployment) -> dict[str, float]:
    """Memory of each router."""
    found = {}
    for status in running.status():
        if status.name.startswith("router"):
            pages = int(Path(f"/proc/{status.pid}/statm").read_text().split()[1])
            found[status.name] = round(pages * resource.getpagesize() / 1e6, 1)
    return found


async def run_streams(count: int, replicas: int, tokens: int, folder: Path) -> dict[str, Any]:
    """Open them all, wait for all, look at what is left."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(redis_server(folder)).url if replicas > 1 else None
        config = deployment("streams", folder, changes(replicas, url))
        async with open_http() as http, Deployment.start(config) as running:
            await ask(http, running.url, "warm", 16, 4)
            before = rss_mb(running)
            started = time.monotonic()
            answers = await asyncio.gather(
                *(ask(http, running.url, f"s{k}", 32, tokens) for k in range(count))
            )
            took_s = time.monotonic() - started
            held: dict[str, float] = {}
            deadline = time.monotonic() + SETTLE_S
            while time.monotonic() < deadline:
                held = await gauges(http, running.run_dir, replicas)
                if not any(held.values()):
                    break
                await asyncio.sleep(0.2)
            statuses = Counter(answer.status for answer in answers)
            errors = Counter(f"{a.status}: {a.error}" for a in answers if a.status != 200)
            return {
                "streams": count,
                "replicas": replicas,
                "answered": statuses[200],
                "refused": statuses[503] + statuses[529],
                "lost": count - statuses[200] - statuses[503] - statuses[529],
                "errors": dict(errors.most_common(5)),
                "held_after": sum(held.values()),
                "held": held,
                "took_s": round(took_s, 1),
                "rss_mb_before": before,
                "rss_mb": rss_mb(running),
            }


async def results(args: argparse.Namespace) -> AsyncIterator[dict[str, Any]]:
    """What was asked for."""
    if args.sessions:
        yield await run_sessions(args.sessions)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield await run_streams(args.streams, args.replicas, args.tokens, Path(folder))


async def run(args: argparse.Namespace) -> bool:
    """Print; True when all is well."""
    async for result in results(args):
        print(json.dumps(result))
        return not result.get("lost") and not result["held_after"]
    return False


def main() -> int:
    """0: nobody was lost and nothing is held; 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=2048)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=16, help="of each answer (16)")
    parser.add_argument("--sessions", type=int, default=0, help="memory of so many sessions")
    args = parser.parse_args()
    if min(args.streams, args.replicas, args.tokens) < 1 or args.sessions < 0:
        raise UserError("--streams, --replicas and --tokens must be at least 1")
    return 0 if asyncio.run(run(args)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (UserError, LaunchError) as error:
        print(f"check_streams: {error}", file=sys.stderr)
        sys.exit(2)
