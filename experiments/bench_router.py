# SPDX-License-Identifier: Apache-2.0
"""What the router costs beside stock Dynamo, and that it starves no engine. Paired, on one machine.

    python experiments/bench_router.py [--quick] [--rounds N] [--parts ttft ...] [--out ROWS.jsonl]

All deployments are up at once, and load goes to one after the other, forth and back (ABBA); two
equal stock deployments give the null. What is measured:

- *unbounded*: a burst of prompts of one token answer, with the in-flight bound and without any;
  `unbounded_ratio_min` is the least throughput ratio over the prompt lengths. Emulated engines at
  time scale 3, so that processes are not what bounds.
- *peak*: 192 streams of 160 tokens on an engine that costs nothing: tokens/s through frontend,
  router and worker. `broker_ratio`, `relay_ratio` are over the mean of the two stock deployments
  beside them. The cores that each process kept busy are in the rows: the fullest bounds it.
- *TTFT*: single requests on the same deployments. `broker_added_ttft_ms` is the median over rounds
  of the difference to the faster of the two stock deployments, `null_ttft_halfwidth_ms` the
  half-width of the 95 % interval of the difference between two halves of that one's own requests.

Rows (one a block) go to --out; the last line printed is JSON. Six to ten minutes with --quick.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from analysis.intervals import mean_interval
from controller.errors import UserError
from controller.runtime.launcher import Deployment, LaunchError
from experiments.router_bench_kit import (
    Block,
    burst,
    deployment,
    one_by_one,
    open_http,
    streams,
)

LENGTHS = {128: 160, 512: 64, 2048: 24, 16384: 4}
"""Prompts of a burst, by length."""
STREAMS, OUTPUT_TOKENS = 192, 160
REQUESTS, PROMPT_TOKENS = 20, 64
FAST = {
    "prefill.emulated.slowdown": 0.001,
    "decode.emulated.slowdown": 0.001,
    "decode.emulated.max_num_seqs": 4096,
    "decode.emulated.num_blocks": 65536,
}
SCALE = 3.0
LATE_MS, TRIES = 25.0, 5
PARTS = ("unbounded", "ttft", "peak")
ARMS: dict[str, dict[str, Any]] = {
    "stock": {"router.attachment": "none", **FAST},
    "stock_again": {"router.attachment": "none", **FAST},
    "broker": {"router.attachment": "broker", "router.policy": "always_remote", **FAST},
    "relay": {"router.attachment": "relay", "router.policy": "always_remote", **FAST},
    "bounded": {"router.policy": "always_remote", "time_scale": SCALE},
    "unbounded": {
        "router.policy": "always_remote",
        "time_scale": SCALE,
        "router.max_num_batched_tokens": 10**9,
    },
}


@dataclass
class Bench:
    """Deployments that are up, and the rows so far."""

    http: aiohttp.ClientSession
    up: dict[str, Deployment]
    out: Any

    def note(self, part: str, arm: str, round_number: int, block: Block, **more: Any) -> None:
        """Keep a raw row, and say it."""
        row = {
            "part": part,
            "arm": arm,
            "round": round_number,
            "wall_s": round(block.wall_s, 4),
            "tokens": block.tokens,
            "failed": block.failed,
            "median_ttft_ms": round(block.median_ttft_ms, 3),
            "ttft_ms": [round(1e3 * a.ttft_s, 2) for a in block.answers if a.ttft_s is not None],
            "cores": block.processors,
            "load_1m": round(os.getloadavg()[0], 2),
            **more,
        }
        self.out.write(json.dumps(row) + "\n")
        self.out.flush()
        busiest = max(block.processors, key=lambda name: block.processors[name], default="?")
        print(
            f"{part:9} {more.get('prompt_tokens', ''):>6} {arm:12} round {round_number}: "
            f"{block.tokens / block.wall_s:9.0f} tokens/s, TTFT {block.median_ttft_ms:7.1f} ms, "
            f"{block.failed} failed, busiest {busiest} {block.processors.get(busiest, 0):.2f}",
            flush=True,
        )


def forth_and_back(arms: list[str], round_number: int) -> list[str]:
    """ABBA for any number of arms; every second round begins at the other end."""
    order = arms if round_number % 2 == 0 else arms[::-1]
    return [*order, *order[::-1]]


async def unbounded(bench: Bench, rounds: int) -> dict[int, float]:
    """Throughput with the bound over throughput without, by prompt length."""
    ratios = {}
    for length, prompts in LENGTHS.items():
        took: dict[str, list[float]] = {"bounded": [], "unbounded": []}
        for k in range(rounds):
            for place, arm in enumerate(forth_and_back(list(took), k)):
                key = f"{arm}:{length}:{k}:{place}"
                block = await burst(bench.http, bench.up[arm], key, prompts, length)
                bench.note("unbounded", arm, k, block, prompt_tokens=length)
                took[arm].append(block.wall_s)
        ratios[length] = statistics.median(took["unbounded"]) / statistics.median(took["bounded"])
    return ratios


async def peak(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Tokens/s of each arm over the stock ones' mean, by round."""
    arms = [arm for arm in ("stock", "broker", "relay", "stock_again") if arm in bench.up]
    ratios: dict[str, list[float]] = {arm: [] for arm in arms}
    for k in range(rounds):
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        for place, arm in enumerate(forth_and_back(arms, k)):
            key = f"peak:{arm}:{k}:{place}"
            block = await streams(bench.http, bench.up[arm], key, STREAMS, OUTPUT_TOKENS)
            bench.note("peak", arm, k, block)
            rates[arm].append(block.tokens / block.wall_s)
        stock = statistics.mean(rates["stock"] + rates["stock_again"])
        for arm in arms:
            ratios[arm].append(statistics.mean(rates[arm]) / stock)
    return ratios


async def ttft(bench: Bench, rounds: int) -> dict[str, list[list[float]]]:
    """Median TTFT of each arm, ms: by round the block on the way forth and the one back."""
    arms = [arm for arm in ("stock", "broker", "relay", "stock_again") if arm in bench.up]
    medians: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    for k in range(rounds):
        for blocks in medians.values():
            blocks.append([])
        for place, arm in enumerate(forth_and_back(arms, k)):
            key = f"ttft:{arm}:{k}:{place}"
            running = bench.up[arm]
            block = await one_by_one(bench.http, running, key, REQUESTS, PROMPT_TOKENS)
            bench.note("ttft", arm, k, block)
            medians[arm][-1].append(block.median_ttft_ms)
    return medians


def added_ttft(medians: dict[str, list[list[float]]]) -> dict[str, float | None]:
    """What an arm adds to the faster stock deployment, and what that one adds to itself."""

    def typical(arm: str) -> float:
        return statistics.median(statistics.mean(blocks) for blocks in medians[arm])

    stock = min(("stock", "stock_again"), key=typical)
    base = [statistics.mean(blocks) for blocks in medians[stock]]
    null = mean_interval([forth - back for forth, back in medians[stock]])
    summary: dict[str, float | None] = {
        "null_ttft_ms": null[0],
        "null_ttft_halfwidth_ms": null[1],
        "stock_ttft_ms": round(typical(stock), 3),
        "other_stock_ttft_ms": round(max(typical("stock"), typical("stock_again")), 3),
    }
    for arm in ("broker", "relay"):
        added = [statistics.mean(b) - s for b, s in zip(medians[arm], base, strict=True)]
        summary[f"{arm}_added_ttft_ms"] = round(statistics.median(added), 3)
    return summary


async def measure(rounds: int, out: Any, folder: Path, parts: list[str]) -> dict[str, Any]:
    """The wanted parts, on deployments that are up together; two sets, one after the other."""
    summary: dict[str, Any] = {"rounds": rounds}
    if "unbounded" in parts:
        async with contextlib.AsyncExitStack() as stack:
            bench = await raised(stack, out, folder, ("bounded", "unbounded"))
            ratios = await unbounded(bench, max(1, rounds // 2))
        summary["unbounded_ratio_min"] = round(min(ratios.values()), 4)
        summary["unbounded_ratio"] = {str(n): round(r, 4) for n, r in ratios.items()}
    if "ttft" in parts or "peak" in parts:
        async with contextlib.AsyncExitStack() as stack:
            arms = ("stock", "stock_again", "broker", "relay")
            bench = await raised(stack, out, folder, arms)
            # TTFT first: under load a deployment may turn late for good.
            if "ttft" in parts:
                summary |= added_ttft(await ttft(bench, max(5, rounds)))
            if "peak" in parts:
                peaks = await peak(bench, rounds)
                summary["broker_ratio"] = round(statistics.median(peaks["broker"]), 4)
                summary["relay_ratio"] = round(statistics.median(peaks["relay"]), 4)
                summary["null_ratio"] = round(statistics.median(peaks["stock_again"]), 4)
    return summary | {"load_1m": round(os.getloadavg()[0], 2)}


async def raised(
    stack: contextlib.AsyncExitStack, out: Any, folder: Path, arms: tuple[str, ...]
) -> Bench:
    """The arms' deployments, warm, and none of them late throughout its life.

    About half of all deployments, stock ones too, answer every request 40 ms later for as long as
    they live (Dynamo 1.4.2; most likely a delayed acknowledgement on one of their connections).
    Such a one is started again, or the comparison would be between lots that were drawn.
    """
    http = await stack.enter_async_context(open_http())
    bench, closing = Bench(http, {}, out), dict[str, contextlib.AsyncExitStack]()
    slow = list(arms)
    for attempt in range(TRIES):
        for arm in slow:
            if arm in closing:
                await closing[arm].aclose()
            closing[arm] = await stack.enter_async_context(contextlib.AsyncExitStack())
            running = Deployment.start(deployment(arm, folder, ARMS[arm]))
            bench.up[arm] = await closing[arm].enter_async_context(running)
            await streams(http, bench.up[arm], f"warm:{arm}:{attempt}", 32, 8)
            print(f"{arm} is up after {bench.up[arm].ready_after_s:.1f} s", flush=True)
        typical_ms = {
            arm: (await one_by_one(http, up, f"probe:{arm}:{attempt}", 6, 16)).median_ttft_ms
            for arm, up in bench.up.items()
        }
        slow = [arm for arm in arms if typical_ms[arm] > min(typical_ms.values()) + LATE_MS]
        print(
            f"TTFT of idle deployments: {typical_ms}; started again: {slow or 'none'}", flush=True
        )
        if not slow:
            break
    return bench


def main() -> int:
    """Measure, print a line a block, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds in place of eight")
    parser.add_argument("--rounds", type=int, help="forth and back, so often (8)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, help="raw rows, JSONL (a temporary file)")
    args = parser.parse_args()
    rounds = args.rounds or (2 if args.quick else 8)
    if rounds < 2:
        raise UserError("--rounds must be at least 2: one says nothing of the spread")
    out = args.out or Path(tempfile.mkdtemp(prefix="bench_router-")) / "rows.jsonl"
    try:
        file = out.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}") from None
    with file, tempfile.TemporaryDirectory() as folder:
        summary = asyncio.run(measure(rounds, file, Path(folder), args.parts))
    print(f"raw rows: {out}")
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (UserError, LaunchError) as error:
        print(f"bench_router: {error}", file=sys.stderr)
        sys.exit(2)
