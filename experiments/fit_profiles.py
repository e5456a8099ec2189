# SPDX-License-Identifier: Apache-2.0
"""Fit the shipped profiles of data-centre GPUs from aiconfigurator's measured operator tables.

    pip install 'dynamo-equilibrium[costs-data]'
    python experiments/fit_profiles.py [--only NAME ...] [--out DIR] [--tables-out DIR]

Writes one profile a target to --out (default dynamo_configs/profiles) and, with --tables-out, the
step times that it stands on as CSV (the format of `equilibrium profile fit`). About ten seconds a
target, and up to 15 for each folder of operator tables. The last line is JSON: the number of
profiles, their size, and the worst errors between the points of the fit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from controller.costs.architecture import Architecture
from controller.costs.errors_report import step_errors
from controller.costs.measurements import format_measurements
from controller.costs.memory import MemoryBudget, kv_blocks
from controller.costs.model import TableCost
from controller.costs.profile import Engine, Parallelism, Profile, dump_profile
from controller.costs.tables import StepTables, transfer_vector
from controller.errors import UserError
from experiments.aiconfigurator_tables import (
    VERSION,
    AiconfiguratorOperators,
    Hardware,
    hardware,
    load_tables,
)
from experiments.operator_fit import fit_operators
from experiments.operator_steps import as_measurements, between_grid, grid, step_s
from experiments.profile_targets import TARGETS, Precision, Shape, Target

PROFILES = Path(__file__).resolve().parent.parent / "dynamo_configs" / "profiles"
WEIGHT_BYTES = {
    Precision.BF16: 2.0,
    Precision.FP8: 1.0,
    Precision.FP8_BLOCK: 1.0,
    Precision.FP4: 9 / 16,
}
# Prompt and decode tokens of one step, as the engines are shipped; vLLM lowers it on an A100.
BUDGET, BUDGET_A100 = 8192, 2048
# vLLM captures every eighth size up to 256 and every sixteenth up to 512.
CAPTURED = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
TRANSFER_LATENCY_S = 1e-3


def architecture(shape: Shape, precision: Precision) -> Architecture:
    """The shape as controller.costs counts it; an MLP of two matrices counts two thirds."""
    moe = shape.experts > 0
    return Architecture(
        name=shape.label,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate=shape.intermediate if shape.gated else shape.intermediate * 2 // 3,
        vocab=shape.vocab,
        experts=shape.experts,
        experts_per_token=shape.per_token,
        expert_intermediate=shape.intermediate if moe else 0,
        shared_experts=shape.shared // shape.intermediate if moe else 0,
        kv_latent=shape.kv_latent,
        weight_bytes=WEIGHT_BYTES[precision],
        kv_bytes=2.0 if precision is Precision.BF16 else 1.0,
    )


def engine_of(target: Target, system: Hardware) -> Engine:
    """The engine's limits as it is shipped, and the KV blocks that fit."""
    budget = BUDGET_A100 if target.source.system.startswith("a100") else BUDGET
    block_size = 32 if target.source.backend == "trtllm" else 16
    memory = MemoryBudget(
        memory_bytes=system.memory_bytes, block_size=block_size, max_num_batched_tokens=budget
    )
    shape = architecture(target.shape, target.precision)
    return Engine(
        name=target.source.backend,
        version=target.source.version,
        max_num_batched_tokens=budget,
        max_num_seqs=512,
        block_size=block_size,
        num_gpu_blocks=kv_blocks(shape, Parallelism(tp=target.tp), memory) or None,
    )


def provenance(target: Target) -> str:
    """Where the numbers come from and what to know before trusting them."""
    source = target.source
    parts = [
        f"Put together from operator times of aiconfigurator {VERSION} (ai-dynamo, Apache-2.0): "
        f"{source.backend} {source.version} on {source.system}.",
        target.note.strip(),
        target.shape.note,
        "Projections, attention, experts and all-reduce are measured, elementwise work is its "
        "bandwidth formula. Prefill on prior context is not measured there: attention of k+x "
        "tokens less attention of k, not below that of x. Decode and prefill attention of a mixed "
        "step add up. No scheduler and host time.",
    ]
    if target.fused:
        parts.append(
            "The tables' separate quantisation of activations is taken off as fused, which fits "
            "measured servers better."
        )
    parts.append(
        "KV blocks are computed from shapes at 0.9 of the memory. The KV transfer is the "
        f"system's network bandwidth and a latency of {TRANSFER_LATENCY_S * 1e3:g} ms: assumed."
    )
    return " ".join(part for part in parts if part)


def engine_tables(target: Target, fitted: StepTables, system: Hardware) -> StepTables:
    """The fitted step times with the engine's graphs and the KV transfer of all ranks."""
    shape = architecture(target.shape, target.precision)
    ranks = 1 if target.shape.kv_latent else target.tp
    transfer = transfer_vector(
        TRANSFER_LATENCY_S, shape.kv_bytes_per_token, ranks * system.network_bandwidth
    )
    captured = CAPTURED if target.source.backend == "vllm" else ()
    return fitted._replace(transfer=transfer, capture_sizes=np.array(captured, dtype=np.float64))


def fit_target(target: Target, tables: object, tables_out: Path | None) -> Profile:
    """One profile, judged on steps between those of the fit."""
    operators = AiconfiguratorOperators(target, tables)
    system = hardware(tables)
    engine = engine_of(target, system)
    kv_tokens = (engine.num_gpu_blocks or 0) * engine.block_size
    fitted = fit_operators(operators, kv_tokens, engine.max_num_batched_tokens)
    if tables_out is not None:
        rows = (
            (s.batch, s.batch * s.context, s.chunk, s.history, 1e3 * step_s(operators, s))
            for s in grid(kv_tokens)
        )
        (tables_out / f"{target.name}.csv").write_text(format_measurements(rows))
    between = list(between_grid(kv_tokens))
    test = as_measurements(between, [step_s(operators, step) for step in between])
    predicted = TableCost(fitted).steps_s(test.batch, test.context, test.chunk, test.pairs)
    errors = step_errors(predicted, test, f"{len(test)} steps between the points of the fit")
    return Profile.from_fit(
        engine_tables(target, fitted, system),
        errors,
        name=target.name,
        provenance=provenance(target),
        license="Apache-2.0",
        model=target.shape.label,
        gpu=target.gpu,
        precision=target.precision.value,
        parallelism=Parallelism(tp=target.tp),
        engine=engine,
    )


def chosen(only: list[str] | None) -> list[Target]:
    """The targets by name, in the order of their tables. Raises UserError."""
    known = {target.name: target for target in TARGETS}
    for name in only or ():
        if name not in known:
            raise UserError(f"--only {name}: no such target; known: {', '.join(sorted(known))}")
    targets = [known[name] for name in only] if only else list(known.values())
    return sorted(targets, key=_source)


def _source(target: Target) -> tuple[str, str, str]:
    return (target.source.system, target.source.backend, target.source.version)


def write_all(targets: Iterable[Target], out: Path, tables_out: Path | None) -> dict[str, object]:
    """Fit and write; a line a profile. Returns the summary."""
    medians, tails, sizes = [], [], []
    for _, group in itertools.groupby(targets, key=_source):
        tables = None
        for target in group:
            tables = tables or load_tables(target.source)
            profile = fit_target(target, tables, tables_out)
            text = dump_profile(profile)
            (out / f"{target.name}.json").write_text(text)
            error = profile.fit_error
            assert error is not None
            medians.append(error.overall.median_pct)
            tails.append(error.overall.p95_pct)
            sizes.append(len(text))
            print(
                f"{target.name:44} {len(text):6} bytes, error median {medians[-1]:5.2f} % "
                f"p95 {tails[-1]:5.2f} %",
                flush=True,
            )
    return {
        "profiles": len(sizes),
        "largest_bytes": max(sizes),
        "total_bytes": sum(sizes),
        "worst_median_pct": round(max(medians), 3),
        "worst_p95_pct": round(max(tails), 3),
    }


def main() -> int:
    """Fit what is asked for; JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="fit these profiles only")
    parser.add_argument("--out", type=Path, default=PROFILES, help="folder for profiles")
    parser.add_argument("--tables-out", type=Path, help="folder for step times as CSV")
    args = parser.parse_args()
    try:
        targets = chosen(args.only)
        for folder in filter(None, (args.out, args.tables_out)):
            folder.mkdir(parents=True, exist_ok=True)
        summary = write_all(targets, args.out, args.tables_out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
