# SPDX-License-Identifier: Apache-2.0
"""Fit and write the profiles of the GPUs whose operators were measured one by one.

    python experiments/fit_op_profiles.py --op-profiles DIR [--out DIR] [--seeds 5]

Reads folders <gpu_model>/tp<N> of operator tables (LLMServingSim, casys-kaist, MIT), fits every
table, composes whole models and writes one profile each. For every folder it fits random halves
and predicts the other halves. Times are kernel times: a profile holds no host time beyond
--host-step-ms. The last line is JSON with op_median_ape and op_p95_ape (per cent, median over the
seeds) per folder and in all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from controller.costs.architecture import Architecture, llama31_8b, qwen3_30b_a3b, qwen3_32b
from controller.costs.collectives import Link
from controller.costs.compose import ComposeOptions, compose
from controller.costs.errors_report import FitErrors
from controller.costs.op_profiles import HoldoutErrors, fit_ops, holdout_errors
from controller.costs.op_tables import OpTables
from controller.costs.profile import Engine, Parallelism, Profile, dump_profile
from controller.errors import UserError
from controller.runtime.files import write_text
from controller.runtime.operator_tables import read_op_tables

SHIPPED = Path(__file__).parents[1] / "dynamo_configs" / "profiles"
# The runs' own description of the machine: 16 GB/s and 20 us between GPUs. An all-reduce of two
# ranks has two hops, so a hop has half of that latency.
PCIE = Link(10e-6, 16e9)
GRAPHS = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


@dataclass(frozen=True, slots=True)
class Target:
    """A folder and what was measured there."""

    folder: str
    tp: int
    gpu: str
    model: Architecture
    name: str


PRO, CONSUMER = "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA GeForce RTX 4090"
TARGETS = (
    Target("rtxpro6000_llama31_8b", 1, PRO, llama31_8b(), "llama31_8b_tp1_rtxpro6000"),
    Target("rtxpro6000_llama31_8b", 2, PRO, llama31_8b(), "llama31_8b_tp2_rtxpro6000"),
    Target("rtxpro6000_qwen3_32b", 1, PRO, qwen3_32b(), "qwen3_32b_tp1_rtxpro6000"),
    Target("rtxpro6000_qwen3_32b", 2, PRO, qwen3_32b(), "qwen3_32b_tp2_rtxpro6000"),
    Target("rtxpro6000_qwen3_30b_a3b", 1, PRO, qwen3_30b_a3b(), "qwen3_30b_a3b_tp1_rtxpro6000"),
    Target("rtx4090_llama31_8b", 1, CONSUMER, llama31_8b(), "llama31_8b_tp1_rtx4090"),
)


def make_profile(
    target: Target, tables: OpTables, errors: HoldoutErrors, host_step_s: float
) -> Profile:
    """The composed model with the errors of its operators."""
    layout = Parallelism(tp=target.tp)
    options = ComposeOptions(
        max_num_batched_tokens=2048,
        link=PCIE if target.tp > 1 else None,
        host_step_s=host_step_s,
        capture_sizes=GRAPHS,
        kv_link=PCIE,
    )
    said = (
        f"Operator kernel times of one layer, vLLM 0.19.0, from LLMServingSim (casys-kaist): "
        f"{target.folder}/tp{target.tp}; {target.model.layers} layers composed by "
        f"experiments/fit_op_profiles.py. Host time a step: {host_step_s * 1e3:g} ms. Links "
        f"between GPUs and workers: 16 GB/s, 10 us a hop, as the data describes the machine."
    )
    return Profile.from_fit(
        compose(target.model, fit_ops(tables), layout, options),
        FitErrors(errors.overall, "rows of operator tables, random half, seed 0", errors.attention),
        name=target.name,
        provenance=said,
        license="MIT (data)",
        model=target.model.name,
        gpu=target.gpu,
        precision="bf16",
        parallelism=layout,
        engine=Engine(name="vllm", version="0.19.0", max_num_batched_tokens=2048),
    )


def figures(found: list[HoldoutErrors]) -> Mapping[str, float]:
    """Medians over seeds of the pooled errors of a folder."""
    return {
        "op_median_ape": float(np.median([h.overall.median_pct for h in found])),
        "op_p95_ape": float(np.median([h.overall.p95_pct for h in found])),
    }


def shown(name: str, seed: int, h: HoldoutErrors) -> str:
    """One line of a folder and seed: median/p95 per table and per kind of attention step."""
    parts = {"all": h.overall, **h.tables, **{k.value: v for k, v in h.attention.items()}}
    cells = (f"{key} {each.median_pct:.1f}/{each.p95_pct:.1f}" for key, each in parts.items())
    return f"{name} seed {seed}: {', '.join(cells)}"


def fit_all(args: argparse.Namespace) -> dict[str, Any]:
    """Every target: its lines, its profile; returns the summary."""
    if args.seeds < 1:
        raise UserError(f"--seeds {args.seeds}: give at least 1")
    summary: dict[str, Mapping[str, float]] = {}
    everything: list[HoldoutErrors] = []
    for target in TARGETS:
        tables = read_op_tables(args.op_profiles / target.folder / f"tp{target.tp}")
        found = [holdout_errors(tables, seed) for seed in range(args.seeds)]
        for seed, each in enumerate(found):
            print(shown(target.name, seed, each), flush=True)
        text = dump_profile(make_profile(target, tables, found[0], args.host_step_ms / 1e3))
        write_text(args.out / f"{target.name}.json", text)
        print(f"{target.name}: {len(text)} bytes", flush=True)
        summary[target.name], everything = figures(found), everything + found
    return {"folders": summary, **figures(everything)}


def main() -> int:
    """Fit, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op-profiles", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--host-step-ms", type=float, default=0.0)
    args = parser.parse_args()
    try:
        summary = fit_all(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
