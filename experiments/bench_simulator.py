# SPDX-License-Identifier: Apache-2.0
"""Speed of the simulator, side by side with Dynamo's own replay on the same core.

    python experiments/bench_simulator.py            # both topologies, a million requests, start
    python experiments/bench_simulator.py --quick    # fewer requests and repeats

Both sides serve 2,000-token prompts (a quarter of each shared by a group) with 200 output tokens
on the same time tables, blocks of 64 tokens, prefix cache and chunked prefill on, at about 80 % of
what the cluster can do. Ours places by predicted TTFT (`least_ttft`), Dynamo's replay with its KV
router; round robin is measured too. Runs alternate (ours, theirs, theirs, ours); medians count.
`ratio_*` is requests per second of wall time, ours over Dynamo's KV router, everything from the
workload in memory to per-request results and p99 gaps included on our side.

The million runs in a process of its own, so that its peak memory is its own; `start_s` is a fresh
process from `import` to the end of a ten-request simulation, compiled kernels on disk.
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
from pathlib import Path

PROMPT, OUTPUT, BLOCK = 2000, 200, 64
BUDGET, SEATS, BLOCKS = 8192, 256, 16384
SHARED, GROUPS = 0.25, 64
PREFILL_S, TRANSFER_S = 0.112, 0.0105
TOPOLOGIES = {"2p2d": (2, 2), "64p192d": (64, 192)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests and repeats")
    parser.add_argument("--part", choices=["million", "start"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(million(args.quick) if args.part == "million" else start()))
        return 0
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    summary: dict[str, float] = {}
    for name, (prefill, decode) in TOPOLOGIES.items():
        summary |= {f"{key}_{name}": v for key, v in compare(prefill, decode, args.quick).items()}
    child(args, "start")  # compile what is not on disk yet
    summary |= child(args, "start") | child(args, "million")
    print(json.dumps({key: round(value, 4) for key, value in summary.items()}))
    return 0


def compare(prefill: int, decode: int, quick: bool) -> dict[str, float]:
    """Requests per second of both sides on one topology, and their ratio."""
    count = 4_000 if quick else 20_000
    ours_count = count * 5
    speed: dict[str, list[float]] = {}

    def note(who: str, served: int, wall_s: float) -> None:
        speed.setdefault(who, []).append(served / wall_s)
        print(f"{prefill}P{decode}D {who:22} {served / wall_s:12,.0f} requests/s", flush=True)

    ours(prefill, decode, 1_000, "least_ttft")
    for _ in range(1 if quick else 3):
        note("ours least_ttft", ours_count, ours(prefill, decode, ours_count, "least_ttft"))
        note("dynamo kv_router", count, dynamo(prefill, decode, count, "kv_router"))
        note("dynamo round_robin", count, dynamo(prefill, decode, count, "round_robin"))
        note("ours round_robin", ours_count, ours(prefill, decode, ours_count, "round_robin"))
        note("ours least_ttft", ours_count, ours(prefill, decode, ours_count, "least_ttft"))
    median = {who: statistics.median(values) for who, values in speed.items()}
    return {
        "ratio": median["ours least_ttft"] / median["dynamo kv_router"],
        "ratio_round_robin": median["ours round_robin"] / median["dynamo round_robin"],
        "requests_per_s": median["ours least_ttft"],
        "dynamo_requests_per_s": median["dynamo kv_router"],
    }


def rate(prefill: int, decode: int) -> float:
    """Requests a second that load the cluster to about 80 %; prefill is what binds."""
    return 0.8 * prefill / (PREFILL_S * (1 - 0.9 * SHARED))


def ours(prefill: int, decode: int, count: int, placement: str) -> float:
    """Wall seconds of one simulation, per-request results and gaps included."""
    from controller.simulation.cluster import SimOptions, simulate, uniform_cluster

    load = workload(count, rate(prefill, decode))
    cluster = uniform_cluster(prefill, decode, engine(), tables())
    begin = time.perf_counter()
    result = simulate(load, cluster, SimOptions(placement=placement))
    gap_s = float(result.gap_p99_s.mean())
    wall_s = time.perf_counter() - begin
    if not result.served.all() or not gap_s > 0:
        raise SystemExit("a request was not served: the comparison is void")
    return wall_s


def workload(count: int, requests_s: float):
    """Prompts of 2,000 tokens whose first quarter belongs to one of the groups."""
    import numpy as np

    from controller.simulation.workloads.rows import single_rounds, template_heads

    rng = np.random.default_rng(0)
    group = rng.integers(0, GROUPS, count)
    heads = template_heads(group, np.full(GROUPS, int(PROMPT * SHARED)), BLOCK)
    return single_rounds(
        "bench",
        np.cumsum(rng.exponential(1 / requests_s, count)),
        np.full(count, PROMPT),
        np.full(count, OUTPUT),
        heads=heads,
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


def dynamo(prefill: int, decode: int, count: int, router: str) -> float:
    """Wall seconds of Dynamo's offline replay, as it reports them itself."""
    os.environ.setdefault("DYN_LOG", "off")
    from dynamo.mocker import MockEngineArgs
    from dynamo.replay import run_synthetic_trace_replay

    def args(role: str):
        return MockEngineArgs(
            worker_type=role,
            block_size=BLOCK,
            num_gpu_blocks=BLOCKS,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=SEATS,
            planner_profile_data=str(npz()),
        )

    begin = time.perf_counter()
    report = run_synthetic_trace_replay(
        PROMPT,
        OUTPUT,
        count,
        prefill_engine_args=args("prefill"),
        decode_engine_args=args("decode"),
        arrival_interval_ms=1e3 / rate(prefill, decode),
        replay_mode="offline",
        router_mode=router,
        num_prefill_workers=prefill,
        num_decode_workers=decode,
        shared_prefix_ratio=SHARED,
        num_prefix_groups=GROUPS,
    )
    wall_s = time.perf_counter() - begin
    if report["completed_requests"] != count:
        raise SystemExit("Dynamo's replay did not serve every request: the comparison is void")
    return wall_s


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
    from controller.simulation.cluster import SimOptions, simulate, uniform_cluster

    count = 100_000 if quick else 1_000_000
    load = workload(count, rate(256, 768))
    cluster = uniform_cluster(256, 768, engine(), tables())
    begin = time.perf_counter()
    result = simulate(load, cluster, SimOptions(placement="least_ttft"))
    gap_s = float(result.gap_p99_s.mean())
    wall_s = time.perf_counter() - begin
    if not result.served.all() or not gap_s > 0:
        raise SystemExit("a request was not served: the measurement is void")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"million_seconds": wall_s * (1_000_000 / count), "peak_mb": peak_mb}


def start() -> dict[str, float]:
    """From a fresh interpreter to the end of a small simulation; run in a process of its own."""
    ours(2, 2, 10, "least_ttft")
    return {"start_s": time.perf_counter() - _BEGIN}


def child(args: argparse.Namespace, part: str) -> dict[str, float]:
    """One part in a process of its own; returns its JSON."""
    command = [sys.executable, __file__, "--part", part, *(["--quick"] if args.quick else [])]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if part == "start":
        figures["start_s"] = time.perf_counter() - begin
    print(f"{part}: {figures}", flush=True)
    return figures


_BEGIN = time.perf_counter()

if __name__ == "__main__":
    sys.exit(main())
