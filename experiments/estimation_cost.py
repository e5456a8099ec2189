# SPDX-License-Identifier: Apache-2.0
"""What estimation costs: a tick over many workers' metrics, a window of routing loss.

    python experiments/estimation_cost.py [--workers 256] [--ticks 12]

A tick: the text of a frontend and of every worker (lines as Dynamo 1.4.2 and a vLLM engine write
them, about 150 a worker) is read, taken into the window, and the estimate is made. Routing loss:
windows of 64 requests over 64 workers, done as by join-the-shortest-queue with noise, both goals.
Medians by the clock of this machine; prometheus_client's parser over the same texts beside them.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from controller.estimation.estimate import Discovered, Estimator, EstimatorParams
from controller.estimation.exposition import ExpositionReader
from controller.estimation.poa.loss import Goal, window_loss
from controller.estimation.poa.window import PlacementWindow, make_window
from controller.estimation.roster import Role, RoleSource, Worker
from controller.estimation.scrapes import scrape_of_text
from controller.estimation.signals import wanted_samples

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, "+Inf")
FIRST = 0x1179_42D4_E88C_0000
REQUESTS = PLACES = 64


def main() -> int:
    """Measure, print, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--ticks", type=int, default=12)
    args = parser.parse_args()
    if args.workers < 2 or args.ticks < 3:
        print("estimation_cost: --workers at least 2, --ticks at least 3", file=sys.stderr)
        return 2
    figures = {
        "workers": args.workers,
        **tick_ms(args.workers, args.ticks),
        **{f"poa_64x64_{goal.name.lower()}_ms": loss_ms(goal) for goal in Goal},
    }
    print(json.dumps(figures))
    return 0


def tick_ms(count: int, ticks: int) -> dict[str, float]:
    """Median of the later ticks, and of the official parser over the same texts."""
    workers = tuple(
        Worker(FIRST + i, Role.PREFILL if i % 4 == 0 else Role.DECODE, RoleSource.CARD, "dynamo",
               "prefill" if i % 4 == 0 else "backend")
        for i in range(count)
    )  # fmt: skip
    reader = ExpositionReader(wanted_samples())
    estimator = Estimator(EstimatorParams(window_s=30.0))
    spent, cpu, texts = [], [], []
    for tick in range(ticks):
        texts = [worker_text(FIRST + i, tick) for i in range(count)]
        texts.append(frontend_text(count, tick))
        start, used = time.perf_counter(), time.process_time()
        at_s = 5.0 * tick
        estimator.take(scrape_of_text(reader, text, f"t{k}", at_s) for k, text in enumerate(texts))
        estimator.tick(at_s, Discovered(workers, True))
        spent.append((time.perf_counter() - start) * 1e3)
        cpu.append((time.process_time() - used) * 1e3)
    lines = sum(text.count("\n") for text in texts)
    official = timed(lambda: [list(text_string_to_metric_families(t)) for t in texts], 1)
    print(f"{count} workers, {lines} lines: {statistics.median(spent[2:]):.1f} ms a tick, least "
          f"{min(spent[2:]):.1f}; prometheus_client's parser alone {official:.0f} ms")  # fmt: skip
    return {
        "tick_ms": round(statistics.median(spent[2:]), 2),
        "tick_least_ms": round(min(spent[2:]), 2),
        "tick_cpu_ms": round(statistics.median(cpu[2:]), 2),
        "official_parser_ms": round(official, 1),
        "lines": lines,
    }


def worker_text(number: int, tick: int) -> str:
    """What a worker with a vLLM engine shows; half of it is of no interest here."""
    space = 'dynamo_component="backend",dynamo_endpoint="generate",dynamo_namespace="dynamo"'
    own = f'{space},worker_id="{number:x}"'
    done = 20 * tick
    lines = [
        "# HELP dynamo_component_requests_total Total requests",
        f"dynamo_component_requests_total{{{own}}} {done + 3}",
        f"dynamo_component_inflight_requests{{{own}}} 3",
        *histogram("dynamo_component_request_duration_seconds", own, done),
        'vllm:kv_cache_usage_perc{engine="0"} 0.4',
        'vllm:num_requests_running{engine="0"} 3',
        'vllm:num_requests_waiting{engine="0"} 0',
        f'vllm:num_preemptions_total{{engine="0"}} {tick}',
    ]
    for family in ("vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds",
                   "vllm:inter_token_latency_seconds", "dynamo_work_handler_permit_wait_seconds",
                   "dynamo_work_handler_network_transit_seconds"):  # fmt: skip
        lines += histogram(family, 'engine="0"', done)
    lines += [f'dynamo_tokio_worker_park_count_total{{worker="{k}"}} {done}' for k in range(40)]
    return "\n".join(lines)


def histogram(family: str, labels: str, count: int) -> list[str]:
    """A histogram whose values lie between its 4th and 8th bucket."""
    shares = np.clip((np.arange(len(BUCKETS)) - 3) / 4, 0, 1)
    lines = [
        f'{family}_bucket{{{labels},le="{bound}"}} {int(count * share)}'
        for bound, share in zip(BUCKETS, shares, strict=True)
    ]
    return [
        *lines,
        f"{family}_sum{{{labels}}} {count * 0.1}",
        f"{family}_count{{{labels}}} {count}",
    ]


def frontend_text(workers: int, tick: int) -> str:
    """A frontend in KV mode: two gauges a worker."""
    done = workers * 20 * tick
    lines = [
        f'dynamo_frontend_requests_started_total{{model="m"}} {done + 9}',
        f'dynamo_frontend_requests_total{{model="m"}} {done}',
        'dynamo_frontend_active_requests{model="m"} 9',
        'dynamo_frontend_stage_requests{phase="prefill",stage="dispatch"} 4',
        *histogram("dynamo_frontend_time_to_first_token_seconds", 'model="m"', done),
        *histogram("dynamo_frontend_inter_token_latency_seconds", 'model="m"', done),
    ]
    for i in range(workers):
        own = f'dp_rank="0",worker_id="{FIRST + i}",worker_type="decode"'
        lines.append(f"dynamo_frontend_worker_active_decode_blocks{{{own}}} 5")
        lines.append(f"dynamo_frontend_worker_active_prefill_tokens{{{own}}} 0")
    return "\n".join(lines)


def loss_ms(goal: Goal, windows: int = 40) -> float:
    """Median time of a window's loss."""
    made = [window(seed) for seed in range(windows)]
    window_loss(made[0], goal)  # compiles
    spent = [_least(each, goal) for each in made]
    print(
        f"routing loss, {goal.name.lower()}: {statistics.median(spent):.3f} ms a window of "
        f"{REQUESTS} requests and {PLACES} workers, largest {max(spent):.3f}"
    )
    return round(statistics.median(spent), 4)


def _least(each: PlacementWindow, goal: Goal) -> float:
    return timed(lambda: window_loss(each, goal), 3)


def window(seed: int) -> PlacementWindow:
    """Load 0.9, each request to the shorter of two queues drawn at random."""
    rng = np.random.default_rng(seed)
    own = rng.lognormal(-2.0, 0.6, (REQUESTS, 1)) * np.where(
        rng.random((REQUESTS, PLACES)) < 0.1, 0.4, 1.0
    )
    arrival = np.cumsum(rng.exponential(own.mean() / PLACES / 0.9, REQUESTS))
    free = rng.exponential(0.2, PLACES)
    ahead, chosen = free.copy(), np.zeros(REQUESTS, np.int64)
    for i in range(REQUESTS):
        a, b = rng.integers(0, PLACES, 2)
        chosen[i] = a if ahead[a] <= ahead[b] else b
        ahead[chosen[i]] += own[i, chosen[i]]
    return make_window(arrival - arrival[0], own, np.full(REQUESTS, 0.5), chosen, free)


def timed(what: Callable[[], object], times: int) -> float:
    """Least of a few, ms."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        what()
        spent.append((time.perf_counter() - start) * 1e3)
    return min(spent)


if __name__ == "__main__":
    sys.exit(main())
