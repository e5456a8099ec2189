# SPDX-License-Identifier: Apache-2.0
"""How wrong the shipped profiles and the fits are, and what a prediction costs.

    python experiments/check_costs.py [--silicon FILE] [--op-profiles DIR] [--out DIR] [--seeds 5]

1. --silicon: TPOT and TTFT of whole servers (aiconfigurator's validation table) against the shipped
   profiles, through the steady state of analysis.steady_state; raw, and with one factor a system
   and engine. The factors ship with the project (dynamo_configs/silicon_corrections.json) and are
   used for whatever table is given; --fit-corrections fits them on this table and writes them.
2. Evaluation: microseconds of processor time that one predicted step takes, called from compiled
   code and from Python.
3. --op-profiles: folders of operator measurements (LLMServingSim), each table fitted on a random
   half of its rows and judged on the other half, over --seeds seeds, about ten seconds a folder
   and seed. `op_median_ape` and `op_p95_ape` are those of the worst folder.

A part whose argument is missing is skipped and its keys are null. Errors are absolute, in per cent.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.corrections import (
    Factors,
    Metric,
    Prediction,
    cross_validated_pct,
    dump_corrections,
    errors_pct,
    fit_factors,
    parse_corrections,
)
from analysis.cost_report import (
    Group,
    coverage_lines,
    error_rows,
    error_table,
    plot_points,
    write_points,
)
from analysis.intervals import mean_interval
from analysis.silicon import Key, match, parse_points, profile_key
from analysis.silicon_check import LEFT_OUT, by_regime, by_server, predict
from controller.costs.errors_report import Ape
from controller.costs.model import TableCost
from controller.costs.op_profiles import holdout_errors
from controller.costs.profile import Profile
from controller.errors import UserError
from controller.runtime.files import read_text
from controller.runtime.operator_tables import read_op_tables
from controller.runtime.resources import Kind, read_profile, shipped

CORRECTIONS = Path(__file__).resolve().parent.parent / "dynamo_configs/silicon_corrections.json"
FOLD_SEEDS = range(5)
CALLS = 20_000


def shipped_profiles() -> dict[Key, Profile]:
    """The shipped profiles that can be matched with a measured server."""
    found = {}
    for name in shipped(Kind.PROFILE):
        profile = read_profile(name)
        key = profile_key(profile)
        if key is not None:
            found[key] = profile
    return found


def check_silicon(args: argparse.Namespace) -> dict[str, Any]:
    """Part 1. Prints tables, writes files, returns the JSON keys."""
    text = read_text(args.silicon, "table of measured servers")
    profiles = shipped_profiles()
    points = match(parse_points(text, str(args.silicon)), {k: v.name for k, v in profiles.items()})
    print(f"== whole servers: {args.silicon}")
    print("\n".join(coverage_lines(points)))
    compared = [predict(p, profiles[p.key]) for p in points if p.uncovered is None]
    if not compared:
        return {"covered_share": 0.0}
    digest = hashlib.sha256(text.encode()).hexdigest()
    if args.fit_corrections:
        CORRECTIONS.write_text(corrections_text(compared, digest))
        print(f"factors written to {CORRECTIONS}")
    file = parse_corrections(read_text(CORRECTIONS, "corrections"), CORRECTIONS.name)
    factors = {(each.system, each.backend): each for each in file.factors}
    where = "this table" if file.fitted_on == digest else "another table"
    print(f"factors (measured/predicted, median) fitted on {where}:")
    for each in file.factors:
        print(f"  {each.system:8} {each.backend:8} TPOT {each.tpot:.3f}  TTFT {each.ttft:.3f}")
    print_errors(compared, factors)
    print(LEFT_OUT)
    if args.out is not None:
        write_points(args.out / "silicon_points.csv", compared, factors)
        for metric in Metric:
            plot_points(args.out / f"silicon_{metric.value}.png", compared, metric, factors)
    return {
        "covered_share": round(len(compared) / len(points), 4),
        "covered_points": len(compared),
        "factors_from_this_table": file.fitted_on == digest,
        **summary(compared, factors),
        "models": {
            model: summary([c for c in compared if c.point.model == model], factors)
            for model in sorted({c.point.model for c in compared})
        },
        **cross_validated(compared),
    }


def corrections_text(compared: Sequence[Prediction], digest: str) -> str:
    """The file of factors fitted on these points."""
    return dump_corrections(
        fit_factors(compared),
        provenance="Median of measured over predicted of the servers in aiconfigurator's "
        "validation table that a shipped profile covers; written by "
        "experiments/check_costs.py --fit-corrections.",
        license="Apache-2.0",
        fitted_on=digest,
    )


def print_errors(compared: Sequence[Prediction], factors: Factors) -> None:
    """Tables by server, by model and by regime."""
    groups: tuple[tuple[str, Callable[[Prediction], Group]], ...] = (
        ("by system, engine, model and precision", by_server),
        ("by model", lambda c: (c.point.model,)),
        ("by regime", by_regime),
    )
    for metric in Metric:
        for title, by in groups:
            print(f"-- {metric.value.upper()} {title}: raw and with the factor")
            print("\n".join(error_table(error_rows(compared, metric, factors, by))))


def summary(compared: Sequence[Prediction], factors: Factors) -> dict[str, float]:
    """Median and p95 after correction and raw medians."""
    found = {}
    for metric in Metric:
        errors = errors_pct(compared, metric, factors)
        found[f"{metric.value}_median_ape"] = _round(np.median(errors))
        found[f"{metric.value}_p95_ape"] = _round(np.percentile(errors, 95))
        raw = errors_pct(compared, metric)
        found[f"{metric.value}_raw_median_ape"] = _round(np.median(raw))
    return found


def cross_validated(compared: Sequence[Prediction]) -> dict[str, float]:
    """The same with factors that have not seen the points they correct."""
    found = {}
    for metric in Metric:
        errors = cross_validated_pct(compared, metric, list(FOLD_SEEDS))
        found[f"{metric.value}_cross_validated_median_ape"] = _round(np.median(errors))
        found[f"{metric.value}_cross_validated_p95_ape"] = _round(np.percentile(errors, 95))
    print(f"-- factors fitted without the point's fold (5 folds, {len(FOLD_SEEDS)} seeds): {found}")
    return found


def _round(value: Any) -> float:
    return round(float(value), 3)


def check_ops(folder: Path, seeds: int) -> dict[str, Any]:
    """Part 3: every folder below that holds an attention table."""
    print(f"== operator tables: {folder}")
    folders = sorted(path.parent for path in folder.glob("**/attention.csv"))
    if not folders:
        raise UserError(f"--op-profiles {folder}: no folder with an attention.csv in it")
    found = {}
    for each in folders:
        name = str(each.relative_to(folder)) if each != folder else each.name
        found[name] = holdout_summary(each, seeds)
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    return {
        "op_median_ape": max(each["median_ape"][0] for each in found.values()),
        "op_p95_ape": max(each["p95_ape"][0] for each in found.values()),
        "op_models": found,
    }


def holdout_summary(folder: Path, seeds: int) -> dict[str, Any]:
    """Mean over seeds with the half-width of a 95 % interval, over all tables and by table."""
    tables = read_op_tables(folder)
    runs = [holdout_errors(tables, seed) for seed in range(seeds)]

    parts = {name: [run.tables[name] for run in runs] for name in runs[0].tables}
    parts |= {kind.value: [run.attention[kind] for run in runs] for kind in runs[0].attention}
    return {
        **ape_intervals([run.overall for run in runs]),
        "by_table": {name: ape_intervals(errors) for name, errors in parts.items()},
    }


def ape_intervals(runs: Sequence[Ape]) -> dict[str, list[float | None]]:
    """Median and p95 error, each as mean over seeds and half-width."""
    return {
        "median_ape": mean_interval([run.median_pct for run in runs]),
        "p95_ape": mean_interval([run.p95_pct for run in runs]),
    }


def check_evaluation() -> dict[str, Any]:
    """Part 2, over every shipped profile: the slowest one is reported."""
    print("== cost of one predicted step")
    compiled, python = {}, {}
    for name in shipped(Kind.PROFILE):
        cost = read_profile(name).cost_model()
        compiled[name], python[name] = compiled_us(cost), python_us(cost)
    found = {}
    for kind, times in (("compiled", compiled), ("python", python)):
        slowest = max(times, key=lambda name: times[name])
        found[f"{kind}_call_us"] = _round(times[slowest])
        middle = float(np.median(list(times.values())))
        found[f"{kind}_call_us_median"] = _round(middle)
        print(
            f"{kind}: slowest {times[slowest]:.3f} us ({slowest}), median {middle:.3f} us "
            f"over {len(times)} profiles"
        )
    found["python_over_compiled"] = _round(found["python_call_us"] / found["compiled_call_us"])
    return found


def compiled_us(cost: TableCost) -> float:
    """Microseconds a step in a compiled loop over random mixed steps."""
    rng = np.random.default_rng(0)
    batch = rng.integers(1, 257, CALLS)
    context, chunk = batch * rng.integers(16, 8192, CALLS), rng.integers(0, 2048, CALLS)
    pairs = chunk * (rng.integers(0, 8192, CALLS) + chunk / 2)
    steps = [values.astype(np.float64) for values in (batch, context, chunk, pairs)]
    cost.steps_s(*(values[:10] for values in steps))
    return best_us(lambda: cost.steps_s(*steps), 1) / CALLS


def python_us(cost: TableCost) -> float:
    """Microseconds of one call of step_s."""
    cost.step_s(32, 65536, 512, 512 * 2304.0)
    return best_us(lambda: cost.step_s(32, 65536, 512, 512 * 2304.0), 2000)


def best_us(call: Callable[[], object], calls: int) -> float:
    """Processor time of one call, the best of five series: a busy machine changes it little."""
    series = timeit.repeat(call, number=calls, repeat=5, timer=time.process_time)
    return 1e6 * min(series) / calls


def main() -> int:
    """Run the parts that are asked for; JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--silicon", type=Path, help="CSV of measured servers")
    parser.add_argument("--op-profiles", type=Path, help="folder of operator tables")
    parser.add_argument("--seeds", type=int, default=5, help="random halves of --op-profiles")
    parser.add_argument("--out", type=Path, help="folder for CSV and plots")
    parser.add_argument(
        "--fit-corrections", action="store_true", help="fit the factors on --silicon, write them"
    )
    args = parser.parse_args()
    result: dict[str, Any] = dict.fromkeys(
        ("tpot_median_ape", "tpot_p95_ape", "ttft_median_ape", "ttft_p95_ape", "models")
    )
    result |= dict.fromkeys(("op_median_ape", "op_p95_ape", "op_models"))
    try:
        if args.seeds < 1:
            raise UserError(f"--seeds {args.seeds}: give at least 1")
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
        if args.silicon is not None:
            result |= check_silicon(args)
        else:
            print("whole servers: skipped, no --silicon FILE")
        result |= check_evaluation()
        if args.op_profiles is not None:
            result |= check_ops(args.op_profiles, args.seeds)
        else:
            print("operator tables: skipped, no --op-profiles DIR")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"unit": "percent", **result}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
