# SPDX-License-Identifier: Apache-2.0
"""Placement x ordering x rejection in the simulator, over workloads and loads.

    python experiments/compare_policies.py [--quick] [--seeds 5] [--jobs N] [--out rows.parquet]
        [--mooncake FILE] [--azure FILE] [--ttft-scales 0.5 1 2] [--cost-biases 0.8 1 1.25]

The protocol is that of policy_cells.py. First the rate at which AMPD as published attains 60 % is
found for each workload; loads are multiples of it. Every placement gets its own best of six
deployments of the same four workers (prefill share, decode step budget), chosen on training seeds
under hopeless-last and, in its published form, under that; cells are judged on fresh seeds.
Attainment by the mean ITL and by the p99 gap stand side by side in every row.

`--quick`: fewer rules, loads and seeds. TTFT limits at other scales and biased costs are runs of
the published forms, of all placements under the default's ordering and of the default. Raw rows go
to Parquet, one a run. The last line is JSON:

    default_rule            declared in policy_cells.py before the runs
    worst_margin_points     over all cells: attainment of the default less that of the best other
                            combination, the worse of both ITL criteria, mean over seeds
    worst_margin_cell       which cell that is
    non_inferior_cells      of `criterion_cells` (workload, load, criterion): those in which the
                            paired 95 % interval of that difference lies above -1 point
    ratio_at_ampd60         default over AMPD where AMPD attains 60 %, least over workloads
    r90_ratio_published     R90 of the default over that of the best published rule, by workload
    r90_ratio_equal_ordering  the same against placements of others under the same ordering
    longest_wait_s          of the default at the highest load at which it is sustained
    claims                  what the papers claim, measured here (policy_statistics.py)
    variants                by TTFT scale and cost bias: the worst margin and where
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script


from controller.errors import UserError
from experiments import policy_cells as cells
from experiments.policy_cells import AMPD, DEFAULT, Deployment, Rule
from experiments.policy_statistics import (
    ampd_claim,
    bootstrap_ratio,
    deflection_claim,
    paired_interval,
    r90,
)

TRAINING = (1001, 1002)
FIRST_SEED = 101
AT = 0.6
LOADS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
QUICK_LOADS = (0.5, 1.0, 1.5, 2.0)
QUICK_ORDERINGS = ("fifo", "hopeless_last", "moore_hodgson")


@dataclass(frozen=True, slots=True)
class Files:
    """Trace files, None where not given."""

    mooncake: Path | None
    azure: Path | None


@cache
def scenes_of(files: Files) -> list[cells.Scene]:
    """The workloads, read once a process."""
    return cells.scenes(files.mooncake, files.azure)


@dataclass(frozen=True, slots=True)
class Job:
    """One run. `scene` is an index: workloads hold functions, which do not travel."""

    files: Files
    scene: int
    load: float
    rate: float
    rule: Rule
    deployment: Deployment
    seed: int
    ttft_scale: float = 1.0
    cost_bias: float = 1.0


def _run(job: Job) -> dict[str, Any]:
    scene = scenes_of(job.files)[job.scene]
    slo = replace(scene.slo, ttft_ms=scene.slo.ttft_ms * job.ttft_scale)
    summary, slope = cells.run_cell(
        replace(scene, slo=slo),
        job.rate,
        job.rule,
        job.deployment,
        job.seed,
        cost_bias=job.cost_bias,
    )
    return {
        "workload": scene.name,
        "load": job.load,
        "rate_per_s": job.rate,
        "rule": job.rule.name,
        "placement": job.rule.placement,
        "ordering": job.rule.ordering,
        "reject": job.rule.reject,
        "deployment": job.deployment.name,
        "seed": job.seed,
        "ttft_scale": job.ttft_scale,
        "cost_bias": job.cost_bias,
        "slo_itl_ms": scene.slo.itl_ms,
        "requests": summary.requests,
        "attainment": summary.attainment,
        "attainment_p99_gap": summary.attainment_p99_gap,
        "attainment_longest_decile": summary.attainment_longest_decile,
        "goodput_per_s": summary.goodput_per_s,
        "ttft_p95_ms": summary.ttft_ms.p95,
        "gap_p95_ms": summary.gap_p99_ms.p95,
        "longest_wait_s": (summary.longest_wait_ms or 0.0) / 1e3,
        "local_share": summary.local_share,
        "backlog_slope": slope,
    }


class Runs:
    """Runs in processes, all rows kept."""

    def __init__(self, pool: ProcessPoolExecutor, files: Files) -> None:
        self._pool = pool
        self.files = files
        self.rows: list[dict[str, Any]] = []

    def __call__(self, jobs: list[Job], keep: bool = True) -> list[dict[str, Any]]:
        rows = list(self._pool.map(_run, jobs, chunksize=max(1, min(8, len(jobs) // 32))))
        if keep:
            self.rows += rows
        return rows


def ampd60(runs: Runs, scene: int, start: float) -> float:
    """The rate at which AMPD as published attains 60 %, by bisection on training seeds."""

    def attainment(rate: float) -> float:
        jobs = [Job(runs.files, scene, 0.0, rate, AMPD, Deployment(), seed) for seed in TRAINING]
        return float(np.mean([row["attainment"] for row in runs(jobs, keep=False)]))

    low = high = start
    for _ in range(8):
        if attainment(low) > AT:
            break
        low /= 2
    for _ in range(8):
        if attainment(high) < AT:
            break
        high *= 2
    for _ in range(6):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if attainment(middle) > AT else (low, middle)
    return (low * high) ** 0.5


def best_deployments(
    runs: Runs, scene: int, rate: float, rules: list[Rule], quick: bool
) -> dict[str, Deployment]:
    """By rule: the deployment with the highest joint attainment on training seeds at load 1.

    The published forms are tuned as they are, all else by placement under hopeless-last.
    """
    tuned = {rule: rule if rule in cells.PUBLISHED else _typical(rule) for rule in rules}
    choices = cells.DEPLOYMENTS[2:4] if quick else cells.DEPLOYMENTS
    wanted = sorted(set(tuned.values()))
    jobs = [
        Job(runs.files, scene, 1.0, rate, rule, deployment, seed)
        for rule in wanted
        for deployment in choices
        for seed in TRAINING
    ]
    score: dict[Rule, dict[Deployment, float]] = defaultdict(lambda: defaultdict(float))
    for job, row in zip(jobs, runs(jobs, keep=False), strict=True):
        score[job.rule][job.deployment] += row["attainment"] + row["attainment_p99_gap"]
    best = {rule: max(found, key=lambda d: found[d]) for rule, found in score.items()}
    return {rule.name: best[tuned[rule]] for rule in rules}


def _typical(rule: Rule) -> Rule:
    return Rule(rule.placement, "hopeless_last")


def chosen_rules(quick: bool) -> list[Rule]:
    """The factorial, or a part of it with every published form and the default."""
    rules = cells.all_rules()
    if quick:
        rules = tuple(
            rule
            for rule in rules
            if rule in cells.PUBLISHED or (rule.ordering in QUICK_ORDERINGS and not rule.reject)
        )
    return list(rules)


def variant_rules() -> list[Rule]:
    """What is also run at other limits and with biased costs."""
    equal = {Rule(p, DEFAULT.ordering) for p in cells.PLACEMENTS}
    return sorted({*cells.PUBLISHED, *equal, DEFAULT})


def variants(args: argparse.Namespace) -> list[tuple[float, float]]:
    """(TTFT scale, cost bias) beside (1, 1)."""
    return [(scale, 1.0) for scale in args.ttft_scales if scale != 1.0] + [
        (1.0, bias) for bias in args.cost_biases if bias != 1.0
    ]


def compare(args: argparse.Namespace, files: Files) -> tuple[pd.DataFrame, dict[str, float]]:
    """All rows, and AMPD's 60 % rate by workload."""
    scenes, rules = scenes_of(files), chosen_rules(args.quick)
    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
    rates = {}
    with ProcessPoolExecutor(args.jobs) as pool:
        runs = Runs(pool, files)
        for i, scene in enumerate(scenes):
            rate = rates[scene.name] = ampd60(runs, i, scene.start_rate)
            best = best_deployments(runs, i, rate, rules, args.quick)
            jobs = [
                Job(files, i, load, load * rate, rule, best[rule.name], seed)
                for load in args.loads
                for rule in rules
                for seed in seeds
            ]
            jobs += [
                Job(files, i, load, load * rate, rule, best[rule.name], seed, scale, bias)
                for scale, bias in variants(args)
                for load in args.loads
                for rule in variant_rules()
                if rule.name in best
                for seed in seeds
            ]
            print(f"{scene.name}: AMPD attains 60 % at {rate:.2f}/s; {len(jobs)} runs", flush=True)
            runs(jobs)
    return pd.DataFrame(runs.rows), rates


def margins(rows: pd.DataFrame) -> Iterator[tuple[float, str]]:
    """(default less best other in points, cell) by workload, load and ITL criterion."""
    for (workload, load), group in rows.groupby(["workload", "load"]):
        for criterion in ("attainment", "attainment_p99_gap"):
            mean = group.groupby("rule")[criterion].mean() * 100
            others = mean.drop(DEFAULT.name)
            cell = f"{workload} at {load:g}, {criterion}, against {others.idxmax()}"
            yield float(mean[DEFAULT.name] - others.max()), cell


def non_inferior(rows: pd.DataFrame) -> tuple[int, int]:
    """(cells in which the default is not inferior to the best other combination, cells)."""
    fine = total = 0
    for _, group in rows.groupby(["workload", "load"]):
        for criterion in ("attainment", "attainment_p99_gap"):
            by_seed = group.pivot(index="seed", columns="rule", values=criterion) * 100
            others = by_seed.drop(columns=DEFAULT.name)
            best = others[others.mean().idxmax()]
            low, _ = paired_interval((by_seed[DEFAULT.name] - best).to_numpy())
            total += 1
            fine += low > -1.0
    return fine, total


def curves(rows: pd.DataFrame, workload: str, rule: str) -> tuple[Any, list[bool]]:
    """(attainment, longest decile) of shape (loads, seeds) and whether each load is sustained."""
    mine = rows[(rows["workload"] == workload) & (rows["rule"] == rule)]
    both = [
        mine.pivot(index="load", columns="seed", values=name).to_numpy()
        for name in ("attainment", "attainment_longest_decile")
    ]
    slopes = mine.groupby("load")["backlog_slope"].apply(list)
    return (both[0], both[1]), [cells.is_sustained(list(each)) for each in slopes]


def r90_ratios(
    rows: pd.DataFrame, rates: dict[str, float], rivals: list[str]
) -> dict[str, dict[str, Any]]:
    """By workload: R90 of the default over that of its best rival."""
    found = {}
    loads = np.array(sorted(rows["load"].unique()))
    for workload in rows["workload"].unique():
        of, fine = curves(rows, workload, DEFAULT.name)
        every = {rule: curves(rows, workload, rule) for rule in rivals}
        reached = {rule: r90(loads, *c[0], c[1]) for rule, c in every.items()}
        best = max(reached, key=lambda rule: reached[rule])
        ratio, low, high = bootstrap_ratio(of, every[best][0], loads, (fine, every[best][1]))
        found[str(workload)] = {
            "ratio": round(ratio, 3),
            "interval": [round(low, 3), round(high, 3)],
            "rival": best,
            "r90_per_s": round(r90(loads, *of, fine) * rates[workload], 3),
        }
    return found


def plain(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows at the SLO as it is, with costs that are right on average."""
    return rows[(rows["ttft_scale"] == 1.0) & (rows["cost_bias"] == 1.0)]


def by_variant(rows: pd.DataFrame) -> dict[str, Any]:
    """The worst margin at other limits and with biased costs."""
    found = {}
    for (scale, bias), group in rows.groupby(["ttft_scale", "cost_bias"]):
        if (scale, bias) != (1.0, 1.0):
            worst, cell = min(margins(group))
            name = f"ttft x{scale:g}" if bias == 1.0 else f"costs x{bias:g}"
            found[name] = {"worst_margin_points": round(worst, 2), "cell": cell}
    return found


def figures(every: pd.DataFrame, rates: dict[str, float]) -> dict[str, Any]:
    """What the last line says."""
    rows = plain(every)
    worst, cell = min(margins(rows))
    fine, total = non_inferior(rows)
    at_one = rows[rows["load"] == 1.0].groupby(["workload", "rule"])["attainment"].mean()
    ampd_ratio = {
        str(w): round(float(at_one[w, DEFAULT.name] / at_one[w, AMPD.name]), 3)
        for w in rows["workload"].unique()
    }
    published = [rule.name for rule in cells.PUBLISHED]
    equal = [f"{p}+{DEFAULT.ordering}" for p in cells.PLACEMENTS if p not in cells.OURS]
    fair = rows[(rows["rule"] == DEFAULT.name) & (rows["attainment"] >= 0.9)]
    return {
        "default_rule": DEFAULT.name,
        "cells": int(rows.groupby(["workload", "load", "rule"]).ngroups),
        "seeds": int(rows["seed"].nunique()),
        "worst_margin_points": round(worst, 2),
        "worst_margin_cell": cell,
        "non_inferior_cells": fine,
        "criterion_cells": total,
        "ampd60_rate_per_s": {k: round(v, 3) for k, v in rates.items()},
        "ratio_at_ampd60": min(ampd_ratio.values()),
        "ratio_at_ampd60_by_workload": ampd_ratio,
        "r90_ratio_published": r90_ratios(rows, rates, published),
        "r90_ratio_equal_ordering": r90_ratios(rows, rates, equal),
        "longest_wait_s": round(float(fair["longest_wait_s"].max()), 2) if len(fair) else None,
        "claims": {"ampd": ampd_claim(rows), "deflection": deflection_claim(rows)},
        "variants": by_variant(every),
    }


def table(rows: pd.DataFrame) -> str:
    """Attainment by rule and load, mean over seeds, both criteria."""
    lines = []
    for workload, group in rows.groupby("workload"):
        lines.append(f"\n{workload}: SLO attainment in %, mean ITL / p99 gap")
        mean = group.groupby(["rule", "load"])[["attainment", "attainment_p99_gap"]].mean() * 100
        loads = sorted(group["load"].unique())
        lines.append(f"{'':40}" + "".join(f"{load:>14g}" for load in loads))
        for rule in group["rule"].unique():
            both = [mean.loc[(rule, load)] for load in loads]
            lines.append(
                f"{rule:40}" + "".join(f"{a:>7.1f}/{g:<6.1f}" for a, g in map(tuple, both))
            )
    return "\n".join(lines)


def main() -> int:
    """Run, print tables, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rules, loads and seeds")
    parser.add_argument("--seeds", type=int, help="fresh seeds (default 5, quick 3)")
    parser.add_argument("--loads", type=float, nargs="+", help="multiples of AMPD's 60 % rate")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--out", type=Path, default=Path("compare_policies.parquet"))
    parser.add_argument("--mooncake", type=Path, help="Mooncake conversation trace (JSONL)")
    parser.add_argument("--ttft-scales", type=float, nargs="*", default=[], help="other limits")
    parser.add_argument("--cost-biases", type=float, nargs="*", default=[], help="of costs")
    parser.add_argument("--azure", type=Path, help="Azure code trace (CSV)")
    args = parser.parse_args()
    args.seeds = (3 if args.quick else 5) if args.seeds is None else args.seeds
    args.loads = sorted(set(args.loads or (QUICK_LOADS if args.quick else LOADS)) | {1.0})
    scales = [*args.loads, *args.ttft_scales, *args.cost_biases]
    if args.seeds < 1 or min(scales) <= 0 or args.jobs < 1:
        print("compare_policies: seeds, loads, scales and jobs must be above 0", file=sys.stderr)
        return 2
    try:
        rows, rates = compare(args, Files(args.mooncake, args.azure))
    except UserError as error:
        print(f"compare_policies: {error}", file=sys.stderr)
        return 2
    rows.to_parquet(args.out)
    print(table(plain(rows)))
    print(json.dumps(figures(rows, rates)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
