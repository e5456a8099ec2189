# SPDX-License-Identifier: Apache-2.0
"""The demo over several traces: stock, always-remote and AMPD on paired seeds, live Dynamo.

    python experiments/demo_seeds.py [--seeds 5] [--time-scale 1] [--burst-rate 9]

Each seed draws its own trace (calm 20 s, burst 20 s) that all three deployments replay. About
two and a half minutes a seed; keep the machine otherwise idle, `max_lag_ms` says whether it was.
The last line is JSON: per phase and deployment the mean over seeds with the half-width of a 95 %
interval, and the paired difference AMPD minus always-remote of SLO attainment in points.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from analysis.demo_report import local_share
from analysis.intervals import mean_interval
from controller.runtime.demo.compare import SCENARIOS, ScenarioResult, run_scenario
from controller.runtime.load import Phase
from controller.runtime.resources import read_deployment_with
from controller.simulation.synthetic import CalmThenBurst, synthesize


def figures(result: ScenarioResult, phase: int) -> dict[str, float]:
    """What is averaged over seeds, one phase of one run."""
    group = result.summary.phases[phase]
    share = local_share(result, group.name)
    found = {
        "attainment_percent": 100 * (group.attainment or 0.0),
        "ttft_p95_ms": group.ttft_ms.p95,
        "itl_p95_ms": group.itl_ms.p95,
        "local_percent": None if share is None else 100 * share,
        "failed": float(group.intended - group.ok),
        "max_lag_ms": result.max_lag_ms,
    }
    return {name: value for name, value in found.items() if value is not None}


def run_seed(args: argparse.Namespace, seed: int, out: Path) -> dict[str, ScenarioResult]:
    """All three deployments on one trace."""
    config = read_deployment_with("local_1p2d", [("time_scale", args.time_scale)])
    law = CalmThenBurst(burst_rate=args.burst_rate)
    trace = synthesize(law, seed, f"seed{seed}")
    phases = (Phase("calm", 0.0, law.calm_s), Phase("burst", law.calm_s, math.inf))
    return {
        scenario.name: asyncio.run(
            run_scenario(config, scenario, trace, phases, out, 90.0, lambda line: None, None)
        )
        for scenario in SCENARIOS
    }


def main() -> int:
    """Run the seeds, print a line each, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--time-scale", type=float, default=1.0)
    parser.add_argument("--burst-rate", type=float, default=CalmThenBurst().burst_rate)
    args = parser.parse_args()
    cells: dict[tuple[str, str, str], list[float]] = {}
    differences: dict[str, list[float]] = {"calm": [], "burst": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, args.seeds + 1):
            results = run_seed(args, seed, Path(folder))
            for index, phase in enumerate(differences):
                found = {name: figures(result, index) for name, result in results.items()}
                for name, values in found.items():
                    for key, value in values.items():
                        cells.setdefault((phase, name, key), []).append(value)
                attained = {name: values["attainment_percent"] for name, values in found.items()}
                differences[phase].append(attained["ampd"] - attained["always_remote"])
                print(f"seed {seed} {phase:5} {attained}", flush=True)
    table: dict[str, Any] = {}
    for (phase, name, key), values in cells.items():
        table.setdefault(phase, {}).setdefault(name, {})[key] = mean_interval(values)
    paired = {phase: mean_interval(values) for phase, values in differences.items()}
    summary = {"seeds": args.seeds, "phases": table, "ampd_minus_always_remote_points": paired}
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
