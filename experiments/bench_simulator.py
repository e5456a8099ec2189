# SPDX-License-Identifier: Apache-2.0
"""Speed of the simulator, side by side with Dynamo's own replay on the same core.

    python experiments/bench_simulator.py            # both topologies, a million requests, start
    python experiments/bench_simulator.py --quick    # fewer requests and rounds

Both sides serve 2,000-token prompts with 200 output tokens at equal intervals, on the same time
tables, blocks of 64 tokens, prefix cache and chunked prefill on, at about 80 % of what the cluster
can do; once with prompts of their own (`plain`), once with a quarter of each shared by a group
(`shared`, which costs Dynamo's replay more than us). Ours places by predicted TTFT (`least_ttft`),
Dynamo's replay with its KV router; round robin on both sides is measured too.

All of it runs on one core, in rounds of ours, theirs, theirs, ours. A ratio is that of requests a
second of *processor* time, ours over theirs, the median over rounds: the machine may be busy.
`wall` ratios stand beside them. Ours is everything from the workload in memory to per-request
results and p99 gaps; theirs is the call of the replay. **Headline**: `ratio_2p2d` and
`ratio_64p192d` are `least_ttft` over the KV router on the workload on which that is *less*.

The million runs in a process of its own, so that its peak memory is its own; `start_seconds` is a
fresh process from its start to the end of a ten-request simulation, compiled kernels on disk (the
fastest of three; `start_cpu_seconds` is its processor time).
The last line of output is a JSON summary.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PROMPT, OUTPUT, BLOCK = 2000, 200, 64
BUDGET, SEATS, BLOCKS = 8192, 256, 16384
GROUPS = 64
SHARES = {"plain": 0.0, "shared": 0.25}
PREFILL_S, TRANSFER_S = 0.112, 0.0105
TOPOLOGIES = {"2p2d": (2, 2), "64p192d": (64, 192)}
RULES = {"": ("least_ttft", "kv_router"), "round_robin_": ("round_robin", "round_robin")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests and rounds")
    parser.add_argument("--part", choices=["million", "start"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(million(args.quick) if args.part == "million" else start()))
        return 0
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    summary: dict[str, float] = {"load_before": os.getloadavg()[0]}
    child(args, "start")  # compile what is not on disk yet
    for name in TOPOLOGIES:
        summary |= topology(name, args.quick)
    summary |= child(args, "start") | child(args, "million")
    summary["load_after"] = os.getloadavg()[0]
    print(json.dumps({key: round(value, 4) for key, value in summary.items()}))
    return 0


def topology(name: str, quick: bool) -> dict[str, float]:
    """All ratios of one topology."""
    found: dict[str, float] = {}
    for rule, (placement, router) in RULES.items():
        for work, shared in SHARES.items():
            sides = compare(name, placement, router, shared, quick)
            key = f"{rule}{name}_{work}"
            found[f"ratio_{key}"] = sides["cpu"]
            found[f"ratio_wall_{key}"] = sides["wall"]
            found[f"requests_per_s_{key}"] = sides["ours"]
            found[f"dynamo_requests_per_s_{key}"] = sides["theirs"]
    for rule in RULES:
        ratios = [found[f"ratio_{rule}{name}_{work}"] for work in SHARES]
        found[f"ratio_{rule}{name}"] = min(ratios)
    return found


def compare(name: str, placement: str, router: str, shared: float, quick: bool) -> dict[str, float]:
    """Medians over rounds: ratios by processor and wall time, requests per processor second."""
    prefill, decode = TOPOLOGIES[name]
    count = 3_000 if quick else 6_000
    many = count * 10
    ours(prefill, decode, 1_000, placement, shared)
    rounds = []
    for _ in range(1 if quick else 3):
        order = (ours, dynamo, dynamo, ours)
        spent = [
            side(prefill, decode, many, placement, shared) / many
            if side is ours
            else side(prefill, decode, count, router, shared) / count
            for side in order
        ]
        mine, theirs = (spent[0] + spent[3]) / 2, (spent[1] + spent[2]) / 2
        ratios = theirs.cpu / mine.cpu, theirs.wall / mine.wall
        rounds.append((*ratios, 1 / mine.cpu, 1 / theirs.cpu))
        print(
            f"{name} {'shared' if shared else 'plain':6} {placement:11} ours {1 / mine.cpu:9,.0f}/s"
            f"  dynamo {router:11} {1 / theirs.cpu:7,.0f}/s  x{ratios[0]:6.1f}"
            f"  (wall x{ratios[1]:.1f}, load {os.getloadavg()[0]:.1f})",
            flush=True,
        )
    cpu, wall, fast, slow = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"cpu": cpu, "wall": wall, "ours": fast, "theirs": slow}


class Spent(NamedTuple):
    """Seconds."""

    cpu: float
    wall: float

    def __truediv__(self, by: float) -> Spent:
        return Spent(self.cpu / by, self.wall / by)

    def __add__(self, other: tuple[float, ...]) -> Spent:
        return Spent(self.cpu + other[0], self.wall + other[1])


def timed(run: Callable[[], Any]) -> tuple[Spent, Any]:
    """What a call takes, and what it returns."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = run()
    return Spent(time.process_time() - cpu, time.perf_counter() - wall), value


def rate(prefill: int, shared: float) -> float:
    """Requests a second that load the cluster to about 80 %; prefill is what binds."""
    return 0.8 * prefill / (PREFILL_S * (1 - 0.9 * shared))


def ours(prefill: int, decode: int, count: int, placement: str, shared: float) -> Spent:
    """One simulation, per-request results and gaps included."""
    load = workload(count, rate(prefill, shared), shared)
    return simulated(load, prefill, decode, placement)


def simulated(load: Any, prefill: int, decode: int, placement: str) -> Spent:
    """A workload in memory, served."""
    from controller.simulation.cluster import SimOptions, simulate, uniform_cluster

    cluster = uniform_cluster(prefill, decode, engine(), tables())

    def run() -> bool:
        result = simulate(load, cluster, SimOptions(placement=placement))
        return bool(result.served.all()) and float(result.gap_p99_s.mean()) > 0

    spent, whole = timed(run)
    if not whole:
        raise SystemExit("a request was not served: the comparison is void")
    return spent


def workload(count: int, requests_s: float, shared: float) -> Any:
    """Prompts of 2,000 tokens; their first part may belong to one of the groups."""
    import numpy as np

    from controller.simulation.workloads.rows import single_rounds, template_heads

    group = np.random.default_rng(0).integers(0, GROUPS, count)
    heads = template_heads(group, np.full(GROUPS, int(PROMPT * shared)), BLOCK)
    return single_rounds(
        "bench",
        np.arange(count) / requests_s,
        np.full(count, PROMPT),
        np.full(count, OUTPUT),
        heads=heads if shared else None,
    )


def engine():
    from controller.engine import EngineSpec

    return EngineSpec(
        block_size=BLOCK,
        num_blocks=BLOCKS,
        max_num_batched_tokens=BUDGET,
        max_num_seqs=SEATS,
    )


def tables():
    """The line that `npz` writes out as tables."""
    from controller.costs.tables import linear_tables

    return linear_tables(
        base_s=0.0,
        per_sequence_s=1e-5,
        per_context_token_s=2e-8,
        per_prefill_token_s=PREFILL_S / PROMPT,
        per_prefill_pair_s=0.0,
        max_chunk_tokens=BUDGET,
        kv_latency_s=0.0005,
        kv_bytes_per_token=131072,
        kv_bandwidth_bytes_s=PROMPT * 131072 / (TRANSFER_S - 0.0005),
    )._replace(dense_s=_base())


def _base():
    from controller.costs.tables import vector

    return vector([0.008])


def dynamo(prefill: int, decode: int, count: int, router: str, shared: float) -> Spent:
    """One offline replay of Dynamo's."""
    os.environ.setdefault("DYN_LOG", "off")
    from dynamo.mocker import MockEngineArgs
    from dynamo.replay import run_synthetic_trace_replay

    def args(role: str) -> Any:
        return MockEngineArgs(
            worker_type=role,
            block_size=BLOCK,
            num_gpu_blocks=BLOCKS,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=SEATS,
            planner_profile_data=str(npz()),
        )

    spent, report = timed(
        lambda: run_synthetic_trace_replay(
            PROMPT,
            OUTPUT,
            count,
            prefill_engine_args=args("prefill"),
            decode_engine_args=args("decode"),
            arrival_interval_ms=1e3 / rate(prefill, shared),
            replay_mode="offline",
            router_mode=router,
            num_prefill_workers=prefill,
            num_decode_workers=decode,
            shared_prefix_ratio=shared,
            num_prefix_groups=GROUPS if shared else 0,
        )
    )
    if report["completed_requests"] != count:
        raise SystemExit("Dynamo's replay did not serve every request: the comparison is void")
    return spent


def npz() -> Path:
    """Dynamo's planner profile with our line, written once."""
    import numpy as np

    path = Path(tempfile.gettempdir()) / f"equilibrium-bench-{os.getpid()}.npz"
    if not path.exists():
        lengths = np.array([128, 512, 1024, 2048, 4096, 8192], float)
        held = np.linspace(0, 256 * 2200, 9)
        context = np.array([256, 1024, 2048, 4096], float)
        itl_ms = 8 + 1e-2 * (held[:, None] / context[None, :]) + 2e-5 * held[:, None]
        np.savez(
            path,
            prefill_isl=lengths,
            prefill_ttft_ms=8 + lengths * PREFILL_S / PROMPT * 1e3,
            decode_active_kv_tokens=held,
            decode_context_length=context,
            decode_itl=itl_ms,
        )
    return path


def million(quick: bool) -> dict[str, float]:
    """A million requests on 1,024 workers, and the peak memory of this process."""
    count = 100_000 if quick else 1_000_000
    shared = SHARES["shared"]
    ours(2, 2, 10, "least_ttft", shared)  # loads the kernels, which `start_seconds` has
    spent = simulated(workload(count, rate(256, shared), shared), 256, 768, "least_ttft")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    scale = 1_000_000 / count
    return {
        "million_seconds": spent.wall * scale,
        "million_cpu_seconds": spent.cpu * scale,
        "peak_mb": peak_mb,
    }


def start() -> dict[str, float]:
    """A small simulation, started as `equilibrium simulate` starts; run in a process of its own,
    whose time the parent takes."""
    from controller.cli.quick_start import quick_start

    with quick_start():
        return ours(2, 2, 10, "least_ttft", 0.0)._asdict()


def child(args: argparse.Namespace, part: str) -> dict[str, float]:
    """One part in a process of its own; returns its JSON. Of starts the fastest of three: on a
    busy machine the others measure the neighbours."""
    command = [sys.executable, __file__, "--part", part, *(["--quick"] if args.quick else [])]
    if part == "start":
        spent = [timed_child(command)[0] for _ in range(3)]
        figures = {
            "start_seconds": min(each.wall for each in spent),
            "start_cpu_seconds": min(each.cpu for each in spent),
        }
    else:
        figures = json.loads(timed_child(command)[1].splitlines()[-1])
    print(f"{part}: {figures}", flush=True)
    return figures


def timed_child(command: list[str]) -> tuple[Spent, str]:
    """What a process takes from start to end, and its output."""
    # With Python's own cache of compiled modules, which an installed package has.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(cpu, wall), done.stdout


if __name__ == "__main__":
    sys.exit(main())
