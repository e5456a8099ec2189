# SPDX-License-Identifier: Apache-2.0
"""Live emulated workers against the simulator: the same trace, TTFT request by request.

    python experiments/check_emulated.py [--seeds 5] [--time-scale 16] [--policy always_remote]

Each seed draws a trace (calm, then a burst), replays it against a whole Dynamo deployment with
emulated workers behind our relay, and serves it once more in the simulator, from the same
deployment file, by the same rule. Nothing is fitted or subtracted. A live request also waits for
HTTP, tokenisation, the event plane, the side channel and processes that wake late. These take wall
time, so a time scale of K divides them by K: `late_wall_ms` is about the same at every scale (43
to 55 ms at 8, 16 and 32 on two cores busy with other work), the error halves when it doubles. What
is left are decode steps: who comes a little late may wait for one more. About three minutes a seed.

The last line is JSON: `ttft_median_relative_error` is the median over all requests of
|simulated/live - 1|; `runs` has it with p50 and p95 of both sides for each seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from analysis.intervals import mean_interval
from controller.config import DeploymentConfig
from controller.errors import UserError
from controller.runtime.demo.compare import ScenarioResult
from controller.runtime.launcher import LaunchError
from controller.runtime.load.rows import Status
from controller.runtime.resources import read_deployment_with
from controller.simulation.report.parts import REMOTE, ttft_parts
from controller.simulation.synthetic import CalmThenBurst, synthesize
from controller.simulation.traces import Trace
from controller.types import FloatArray
from experiments.both_sides import serve_live, serve_simulated

TIME_LIMIT_S = 300.0


@dataclass(frozen=True, eq=False)
class Comparison:
    """One seed: ms of emulated time, (requests,) in the order of the trace."""

    live_ms: FloatArray
    simulated_ms: FloatArray
    live_prefilled_ms: FloatArray
    """Queue and remote prefill as the router saw them; NaN for local ones."""
    simulated_prefilled_ms: FloatArray
    same_place: float
    """Share of prefills that both sides ran on the same kind of worker."""
    max_lag_ms: float

    @property
    def errors(self) -> FloatArray:
        """Simulated over live, minus 1."""
        return self.simulated_ms / self.live_ms - 1.0


def deployment(args: argparse.Namespace) -> DeploymentConfig:
    """Two prefill and two decode workers behind our own binding of sessions. UserError."""
    return read_deployment_with(
        "local_1p2d",
        [
            ("router.attachment", "relay"),
            ("router.policy", args.policy),
            ("time_scale", args.time_scale),
            ("prefill.workers", args.prefill),
            ("decode.workers", args.decode),
        ],
    )


def live(config: DeploymentConfig, trace: Trace, folder: Path) -> ScenarioResult:
    """The trace through a deployment; every request has to be served."""
    result = serve_live(config, trace, folder, TIME_LIMIT_S)
    for row in result.load.rows:
        if row.status is not Status.OK:
            raise UserError(f"request of line {row.line} was not served: {row.error}")
        if row.prompt_tokens != row.prompt_tokens_intended:
            raise UserError(
                f"request of line {row.line} had {row.prompt_tokens} prompt tokens, the trace says "
                f"{row.prompt_tokens_intended}: the two sides would not serve the same"
            )
    return result


def compare(config: DeploymentConfig, trace: Trace, result: ScenarioResult) -> Comparison:
    """Both sides of one trace, request by request."""
    cluster, simulated = serve_simulated(config, trace)
    parts = ttft_parts(simulated, cluster)
    rows, decisions = result.load.rows, _decisions(result)
    live_remote = np.array([each["place"] == "remote" for each in decisions])
    return Comparison(
        live_ms=np.array([row.ttft_ms for row in rows], float),
        simulated_ms=simulated.ttft_s * 1e3,
        live_prefilled_ms=np.array([_prefilled_ms(each) for each in decisions], float),
        simulated_prefilled_ms=np.where(
            simulated.place == REMOTE, (parts.queue_s + parts.prefill_s) * 1e3, np.nan
        ),
        same_place=float(np.mean(live_remote == (simulated.place == REMOTE))),
        max_lag_ms=result.max_lag_ms or 0.0,
    )


def _decisions(result: ScenarioResult) -> list[dict[str, Any]]:
    """The router's record of each row, in their order."""
    by_request = {each["request_id"]: each for each in result.decisions}
    try:
        return [by_request[row.response_id] for row in result.load.rows]
    except KeyError:
        raise UserError("the router's log lacks a request: the run cannot be compared") from None


def _prefilled_ms(decision: dict[str, Any]) -> float:
    queue_ms, prefill_ms = decision["queue_ms"], decision["prefill_ms"]
    return np.nan if prefill_ms is None else queue_ms + prefill_ms


def _median(values: FloatArray) -> float | None:
    """Of what is known; None of nothing."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def figures(found: Comparison, time_scale: float) -> dict[str, float | None]:
    """One run in numbers."""
    values: dict[str, Any] = {"requests": len(found.live_ms)}
    for name, ms in (("live", found.live_ms), ("simulated", found.simulated_ms)):
        values |= {f"{name}_p50_ms": np.median(ms), f"{name}_p95_ms": np.percentile(ms, 95)}
    # Where live requests lose time, in wall ms: before the prefill's end, and after it.
    late_ms = (found.live_ms - found.simulated_ms) * time_scale
    before_ms = (found.live_prefilled_ms - found.simulated_prefilled_ms) * time_scale
    values |= {
        "median_relative_error": np.median(np.abs(found.errors)),
        "median_signed_error": np.median(found.errors),
        "p50_error": values["simulated_p50_ms"] / values["live_p50_ms"] - 1.0,
        "p95_error": values["simulated_p95_ms"] / values["live_p95_ms"] - 1.0,
        "late_wall_ms": _median(late_ms),
        "late_until_prefilled_wall_ms": _median(before_ms),
        "late_after_it_wall_ms": _median(late_ms - before_ms),
        "same_place": found.same_place,
        "max_lag_wall_ms": found.max_lag_ms * time_scale,
    }
    return {
        name: None if value is None else round(float(value), 4) for name, value in values.items()
    }


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Every seed; prints as it goes."""
    config = deployment(args)
    law = CalmThenBurst(
        calm_s=args.calm, burst_s=args.burst, calm_rate=args.calm_rate, burst_rate=args.burst_rate
    )
    runs, errors = {}, []
    for seed in range(args.seed, args.seed + args.seeds):
        trace = synthesize(law, seed, f"seed{seed}")
        with tempfile.TemporaryDirectory() as folder:
            found = compare(config, trace, live(config, trace, Path(folder)))
        runs[str(seed)] = figures(found, args.time_scale)
        errors.append(np.abs(found.errors))
        print(f"seed {seed}: {runs[str(seed)]}", flush=True)
        if args.out is not None:
            _write(args.out / f"seed-{seed}.csv", found)
    per_run = [run["median_relative_error"] or 0.0 for run in runs.values()]
    return {
        "policy": args.policy,
        "time_scale": args.time_scale,
        "seeds": args.seeds,
        "ttft_median_relative_error": round(float(np.median(np.concatenate(errors))), 4),
        "per_seed": mean_interval(per_run),
        "runs": runs,
    }


def _write(path: Path, found: Comparison) -> None:
    """Both sides of every request."""
    columns = np.column_stack(
        [
            found.live_ms,
            found.simulated_ms,
            found.live_prefilled_ms,
            found.simulated_prefilled_ms,
        ]
    )
    names = "live_ms,simulated_ms,live_prefilled_ms,simulated_prefilled_ms"
    np.savetxt(path, columns, fmt="%.3f", delimiter=",", header=names, comments="")


def main() -> int:
    """JSON last; exit 2 with one line for what the operator can fix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    law = CalmThenBurst()
    add("--seeds", type=int, default=5, help="traces, each a live run (default: %(default)s)")
    add("--seed", type=int, default=1, help="of the first trace (default: %(default)s)")
    add("--time-scale", type=float, default=16.0, help="wall s per emulated s (%(default)g)")
    add("--policy", default="always_remote", help="placement rule (default: %(default)s)")
    add("--prefill", type=int, default=2, help="prefill workers (default: %(default)s)")
    add("--decode", type=int, default=2, help="decode workers (default: %(default)s)")
    add("--calm", type=float, default=2.0, metavar="S", help="(default: %(default)g)")
    add("--burst", type=float, default=2.0, metavar="S", help="(default: %(default)g)")
    add("--calm-rate", type=float, default=law.calm_rate, help="sessions/s (%(default)g)")
    add("--burst-rate", type=float, default=law.burst_rate, help="sessions/s (%(default)g)")
    add("--out", type=Path, metavar="DIR", help="folder for one CSV a seed")
    args = parser.parse_args()
    try:
        if args.seeds < 1:
            raise UserError(f"--seeds {args.seeds}: give at least 1")
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
        summary = check(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
