# SPDX-License-Identifier: Apache-2.0
"""How a fixed number of GPUs is best split into attention and FFN workers (AFD).

    python experiments/afd_sweep.py                                  # Llama-70B on 16 H200
    python experiments/afd_sweep.py --split spread --seeds 20
    python experiments/afd_sweep.py --model qwen3_30b_a3b --gpus 8 --memory-gb 86 \
        --op-profile ../shared/validation/op_profiles/rtxpro6000_qwen3_30b_a3b/tp1

A closed batch of decode-heavy requests (controller.simulation.workloads.rollouts, shorter tail) is
served by every split, longer for splits that hold more, the first requests the same for a seed:
differences are paired. Measured between the first and the third quarter of all finishes: before,
the batch is young and in step; after, it drains. Layer times are rooflines (assumptions), or, with
--op-profile, measured operators; links are an assumption in both. No AFD system was measured: the
shape of the curve is the result, not its height. The last line of output is a JSON summary.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from analysis.intervals import mean_interval
from controller.costs.architecture import (
    Architecture,
    llama31_8b,
    llama31_70b,
    qwen3_30b_a3b,
    qwen3_32b,
)
from controller.costs.op_profiles import fit_ops
from controller.errors import UserError
from controller.runtime.operator_tables import read_op_tables
from controller.simulation.afd.costs import AfdCosts, Gpu, h200, roofline_costs
from controller.simulation.afd.measured import measured_costs
from controller.simulation.afd.pool import AfdError, AfdPool, FfnSplit
from controller.simulation.afd.run import AfdWindow, simulate_afd
from controller.simulation.lengths import Lengths
from controller.simulation.workloads.rollouts import rollouts
from controller.simulation.workloads.shaping import limit_requests
from controller.simulation.workloads.workload import Workload

MODELS: dict[str, Callable[[], Architecture]] = {
    "llama31_8b": llama31_8b,
    "llama31_70b": llama31_70b,
    "qwen3_32b": qwen3_32b,
    "qwen3_30b_a3b": qwen3_30b_a3b,
}
PROMPT = Lengths(1000, 0.6, 32, 8000)
OUTPUT = Lengths(1500, 0.6, 64, 8000)
WAVES = 4
"""Requests over the sequences that a pool can hold: its queue outlasts the window."""
HEADER = "   A:F  tokens/s/GPU ±95 %  running  step ms  TPOT ms  attention   FFN  link %  preempted"


@dataclass(frozen=True)
class Point:
    """One split with one seed."""

    window: AfdWindow
    tpot_ms: float
    preempted: int


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Sweep the attention:FFN ratio of an AFD decode pool.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="llama31_70b", help="shape of the model")
    add("--gpus", type=int, default=16, help="attention and FFN workers together")
    add("--split", choices=[s.value for s in FfnSplit], default="replicas", help="of FFN weights")
    add("--micro-batches", type=int, default=3, help="in flight at once")
    add("--max-sequences", type=int, default=256, help="of an attention worker")
    add("--memory-gb", type=float, default=None, help="of a GPU, usable; default: an H200's")
    add("--op-profile", type=Path, default=None, help="folder with attention.csv, dense.csv, ...")
    add("--seeds", type=int, default=5, help="workloads, from seed 0 on")
    return parser


def _costs_of(args: argparse.Namespace) -> Callable[[AfdPool], AfdCosts]:
    model = MODELS[args.model]()
    gpu: Gpu = h200()
    if args.memory_gb is not None:
        gpu = replace(gpu, memory_bytes=args.memory_gb * 1e9)
    if args.op_profile is None:
        return lambda pool: roofline_costs(model, gpu, pool)
    ops = fit_ops(read_op_tables(args.op_profile))
    return lambda pool: measured_costs(ops, model, gpu, pool)


def _splits(args: argparse.Namespace) -> list[tuple[AfdPool, AfdCosts]]:
    """Every split of the GPUs that can hold the model."""
    costs_of = _costs_of(args)
    splits = []
    for attention in range(1, args.gpus):
        pool = AfdPool(
            attention_workers=attention,
            ffn_workers=args.gpus - attention,
            split=FfnSplit(args.split),
            micro_batches=args.micro_batches,
            max_sequences=args.max_sequences,
        )
        try:
            splits.append((pool, costs_of(pool)))
        except AfdError as error:
            print(f"{_name(pool):>6}  {error}")
    if len(splits) < 3:
        raise AfdError(f"{args.gpus} GPUs hold the model in {len(splits)} splits: give more GPUs")
    return splits


def _held(args: argparse.Namespace, costs: AfdCosts, workers: int) -> int:
    """Sequences that so many attention workers can hold at once."""
    by_kv = costs.kv_tokens / (PROMPT.mean + OUTPUT.mean / 2)
    return int(workers * min(by_kv, args.max_sequences)) + 1


def _point(workload: Workload, costs: AfdCosts, pool: AfdPool) -> Point:
    """The middle half of one run."""
    run = simulate_afd(workload, costs, pool)
    start_s, end_s = np.nanquantile(run.finish_s, [0.25, 0.75])
    inside = (run.finish_s >= start_s) & (run.finish_s <= end_s)
    decoding = (run.finish_s - run.joined_s)[inside] / (workload.output_tokens[inside] - 1)
    return Point(
        window=run.window(float(start_s), float(end_s)),
        tpot_ms=1000 * float(np.nanmedian(decoding)),
        preempted=int(run.preemptions.sum()),
    )


def _name(pool: AfdPool) -> str:
    return f"{pool.attention_workers}:{pool.ffn_workers}"


def _row(pool: AfdPool, points: Sequence[Point], gpus: int) -> str:
    rate, half = mean_interval([point.window.tokens_per_s / gpus for point in points])
    means = np.mean(
        [
            (
                point.window.sequences,
                1000 * point.window.step_s,
                point.tpot_ms,
                100 * point.window.attention_busy,
                100 * point.window.ffn_busy,
                100 * point.window.link_busy,
                point.preempted,
            )
            for point in points
        ],
        axis=0,
    )
    return (
        f"{_name(pool):>6}  {rate:12.1f} ±{half or 0:5.1f}"
        "{:9.0f}{:9.1f}{:9.1f}{:11.0f}{:6.0f}{:8.0f}{:11.0f}".format(*means)
    )


def _gains(best: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a / b - 1 for a, b in zip(best, other, strict=True)]


def _summary(args: argparse.Namespace, results: dict[str, list[float]]) -> dict[str, object]:
    names = list(results)
    best = int(np.argmax([np.mean(results[name]) for name in names]))
    by_seed = np.argmax([results[name] for name in names], axis=0)
    return {
        "model": args.model,
        "gpus": args.gpus,
        "split": args.split,
        "measured_operators": args.op_profile is not None,
        "seeds": args.seeds,
        "tokens_per_s_per_gpu": {name: mean_interval(results[name]) for name in names},
        "best": names[best],
        "best_by_seed": [names[each] for each in by_seed],
        "interior": 0 < best < len(names) - 1,
        "gain_over_ends": {
            name: mean_interval(_gains(results[names[best]], results[name]))
            for name in (names[0], names[-1])
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the sweep and its summary."""
    args = _parser().parse_args(argv)
    try:
        splits = _splits(args)
        most = WAVES * max(_held(args, costs, pool.attention_workers) for pool, costs in splits)
        workloads = [
            rollouts(most, 1, seed, prompt=PROMPT, output=OUTPUT) for seed in range(args.seeds)
        ]
        print(f"{args.model}, {args.gpus} GPUs, {args.split}, {args.seeds} seeds")
        print(HEADER)
        results = {}
        for pool, costs in splits:
            enough = WAVES * _held(args, costs, pool.attention_workers)
            points = [_point(limit_requests(w, enough), costs, pool) for w in workloads]
            results[_name(pool)] = [p.window.tokens_per_s / args.gpus for p in points]
            print(_row(pool, points, args.gpus), flush=True)
    except UserError as error:
        print(f"afd_sweep: {error}", file=sys.stderr)
        return 2
    print(json.dumps(_summary(args, results)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
