# SPDX-License-Identifier: Apache-2.0
"""The engine law and composed step times against logs of real vLLM runs.

    python experiments/check_simulator.py --vllm-runs DIR --op-profiles DIR [--out DIR]

DIR of runs holds one folder a run (meta.json, requests.jsonl, optional simulator_config.json); DIR
of profiles one folder a model and GPU (meta.yaml, tp1/attention.csv, ...). Step times come from the
operator measurements and the constants of vllm_steps, which are the same for every run; nothing is
fitted to a run. Arrivals are the logged ones at the front end. Per run it prints TTFT, TPOT and
latency, simulated against logged; --out writes both for every request as CSV. A minute a run, most
of it the fit of the measurements. The last line is JSON with relative errors:
{"runs": {name: {"ttft_mean": ..., "tpot_p95": ..., ...}}, "compiled_s": {name: ...}}.

The engine law is iterated step by step (vllm_replay): it alone knows when a busy engine takes a
request in, from which the log counts, and data-parallel engines. A run of one engine goes through
the compiled simulator too; `compiled_s` is the largest difference of any first or last token, in
seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from controller.costs.op_profiles import OpFit, fit_ops
from controller.costs.tables import Floats
from controller.errors import UserError
from controller.runtime.operator_tables import read_op_tables
from experiments.vllm_compiled import compiled_tokens
from experiments.vllm_replay import engine_spec, replay
from experiments.vllm_runs import Log, Run, architecture, operator_folder, read_run, run_folders
from experiments.vllm_steps import OVERHEADS, EngineModel, engine_model

METRICS: dict[str, Callable[[Log], Floats]] = {
    "ttft": lambda log: log.first_s - log.queued_s,
    "tpot": lambda log: (log.last_s - log.first_s) / np.maximum(log.output_tokens - 1, 1),
    "latency": lambda log: log.last_s - log.queued_s,
}
STATISTICS: dict[str, Callable[[Floats], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "p50": lambda values: float(np.percentile(values, 50)),
    "p95": lambda values: float(np.percentile(values, 95)),
    "p99": lambda values: float(np.percentile(values, 99)),
}


@lru_cache
def operators(folder: Path) -> OpFit:
    """The fitted operators of one folder of CSV files. Raises UserError."""
    return fit_ops(read_op_tables(folder))


def model_of(run: Run, profiles: Path) -> EngineModel:
    """The step times of a run's engines."""
    ops = operators(operator_folder(profiles, run, run.tp))
    return engine_model(run, architecture(run.model), ops, OVERHEADS)


def simulate(run: Run, profiles: Path) -> Log:
    """The run with simulated stamps."""
    return replay(run, model_of(run, profiles), OVERHEADS.prefix_share)


def compiled_difference_s(run: Run, profiles: Path, simulated: Log) -> float:
    """Largest difference of a token's time between the compiled simulator and the replay."""
    model = model_of(run, profiles)
    spec = engine_spec(run, model)
    first_s, last_s = compiled_tokens(run.log, spec, model, OVERHEADS.prefix_share)
    gaps = np.abs(first_s - simulated.first_s), np.abs(last_s - simulated.last_s)
    return float(np.max(gaps))


def summary(log: Log) -> dict[str, float]:
    """Milliseconds by metric and statistic: `ttft_mean`, ..."""
    return {
        f"{metric}_{statistic}": 1e3 * reduce(values(log))
        for metric, values in METRICS.items()
        for statistic, reduce in STATISTICS.items()
    }


def relative_errors(logged: Log, simulated: Log) -> dict[str, float]:
    """Simulated over logged minus 1, by the keys of `summary`."""
    is_, was = summary(simulated), summary(logged)
    return {name: is_[name] / was[name] - 1.0 for name in was}


def table(run: Run, simulated: Log) -> str:
    """The comparison of one run for people."""
    is_, was = summary(simulated), summary(run.log)
    lines = [f"{run.name}: {len(run.log)} requests, TP {run.tp}, DP {run.dp}"]
    lines.append(f"{'ms':16} {'vLLM':>10} {'simulated':>10} {'error':>8}")
    for name in was:
        error = 100 * (is_[name] / was[name] - 1.0)
        lines.append(f"{name:16} {was[name]:10.1f} {is_[name]:10.1f} {error:+7.2f}%")
    return "\n".join(lines)


def write_requests(path: Path, logged: Log, simulated: Log) -> None:
    """Logged and simulated times of every request in ms, in order of arrival."""
    columns = {
        "prompt_tokens": logged.prompt_tokens,
        "output_tokens": logged.output_tokens,
        "arrival_ms": np.round(1e3 * logged.arrival_s, 3),
    }
    for side, log in (("logged", logged), ("simulated", simulated)):
        for metric, values in METRICS.items():
            columns[f"{side}_{metric}_ms"] = np.round(1e3 * values(log), 3)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def check(
    folders: list[Path], profiles: Path, out: Path | None
) -> dict[str, dict[str, float] | dict[str, dict[str, float]]]:
    """Every run; prints as it goes. What the last line says."""
    errors, compiled = {}, {}
    for folder in folders:
        run = read_run(folder)
        simulated = simulate(run, profiles)
        print(table(run, simulated))
        if run.dp == 1:
            compiled[run.name] = compiled_difference_s(run, profiles, simulated)
            print(f"compiled simulator: tokens within {compiled[run.name]:.1e} s of these")
        print(flush=True)
        if out is not None:
            write_requests(out / f"{run.name}.csv", run.log, simulated)
        found = relative_errors(run.log, simulated)
        errors[run.name] = {name: round(error, 5) for name, error in found.items()}
    return {"runs": errors, "compiled_s": compiled}


def main() -> int:
    """JSON last; exit 2 with one line for what the operator can fix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm-runs", type=Path, required=True, help="folder of run folders")
    parser.add_argument("--op-profiles", type=Path, required=True, help="folder of measurements")
    parser.add_argument("--out", type=Path, help="folder for one CSV a run")
    args = parser.parse_args()
    try:
        folders = run_folders(args.vllm_runs)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
        summary = check(folders, args.op_profiles, args.out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
