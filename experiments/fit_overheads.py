# SPDX-License-Identifier: Apache-2.0
"""The two constants that vLLM's steps take beyond their operators, and how well they carry over.

    python experiments/fit_overheads.py --vllm-runs DIR --op-profiles DIR

Fits `step_s` and `eager_s` of vllm_steps (least squares of the relative errors of mean TTFT, TPOT
and latency) on all runs, and for every run on the others: what those constants then predict for
the run that was left out. `prefix_share` stays: it was counted in the logs (vllm_steps). A few
minutes; the last line is JSON with the constants in ms and the errors of the runs left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from controller.errors import UserError
from experiments.check_simulator import operators, relative_errors
from experiments.vllm_replay import replay
from experiments.vllm_runs import Run, architecture, operator_folder, read_run, run_folders
from experiments.vllm_steps import OVERHEADS, Overheads, engine_model

JUDGED = ("ttft_mean", "tpot_mean", "latency_mean")
MOST_MS = 20.0
DIFFERENCE = 0.3  # relative step of the numerical gradient: replays are stepwise in the constants
Errors = Callable[[Run, Overheads], dict[str, float]]


def errors_on(profiles: Path) -> Errors:
    """Relative errors of a run's replay under given constants."""

    def errors(run: Run, overheads: Overheads) -> dict[str, float]:
        ops = operators(operator_folder(profiles, run, run.tp))
        model = engine_model(run, architecture(run.model), ops, overheads)
        return relative_errors(run.log, replay(run, model, overheads.prefix_share))

    return errors


def fit(runs: list[Run], errors: Errors) -> Overheads:
    """The constants that suit these runs best, from 0 up."""

    def residuals(ms: np.ndarray) -> list[float]:
        found = [errors(run, overheads(ms)) for run in runs]
        return [each[name] for each in found for name in JUDGED]

    start = 1e3 * np.array([OVERHEADS.step_s, OVERHEADS.eager_s])
    bounds = ([0.0, 0.0], [MOST_MS, MOST_MS])
    found = least_squares(
        residuals, start, bounds=bounds, diff_step=DIFFERENCE, xtol=0.02, ftol=0.02, max_nfev=8
    )
    return overheads(found.x)


def overheads(ms: np.ndarray) -> Overheads:
    """Constants from milliseconds a step and an eager step."""
    return Overheads(float(ms[0]) / 1e3, float(ms[1]) / 1e3, OVERHEADS.prefix_share)


def shown(found: Overheads) -> dict[str, float]:
    """In milliseconds, rounded."""
    return {"step_ms": round(1e3 * found.step_s, 2), "eager_ms": round(1e3 * found.eager_s, 2)}


def left_out(runs: list[Run], errors: Errors) -> dict[str, dict[str, float]]:
    """Constants of the other runs, and their errors, by the run left out; prints as it goes."""
    result = {}
    for run in runs:
        found = fit([other for other in runs if other is not run], errors)
        predicted = {name: round(error, 4) for name, error in errors(run, found).items()}
        result[run.name] = {**shown(found), **predicted}
        print(f"without {run.name}: {shown(found)}; predicts it with {predicted}", flush=True)
    return result


def main() -> int:
    """JSON last; exit 2 with one line for what the operator can fix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm-runs", type=Path, required=True, help="folder of run folders")
    parser.add_argument("--op-profiles", type=Path, required=True, help="folder of measurements")
    args = parser.parse_args()
    try:
        runs = [read_run(folder) for folder in run_folders(args.vllm_runs)]
        if len(runs) < 2:
            raise UserError(f"{args.vllm_runs}: leaving one out needs two runs")
        errors = errors_on(args.op_profiles)
        others = left_out(runs, errors)
        all_runs = shown(fit(runs, errors))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"all": all_runs, "left_out": others}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
