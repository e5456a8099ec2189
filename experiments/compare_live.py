# SPDX-License-Identifier: Apache-2.0
"""Policies through a live Dynamo with emulated workers, beside the simulator: the same order?

    python experiments/compare_live.py [--seeds 5] [--time-scale 1] [--rules NAME+ORDERING ...]

Each seed draws a trace (calm, then a burst beyond what the prefill workers do). Every rule serves
it in a whole Dynamo deployment behind our relay, and once more in the simulator, from the same
deployment file. The order of rules alternates from seed to seed, so that a machine that slows down
favours nobody. Late binding is off: the simulator has none. Requests that were not served are
misses. About a minute a rule and seed.

The last line is JSON: SLO attainment by rule, live and simulated (mean over seeds with the half
width of a 95 % interval), `concordant_pairs` of `pairs` of rules that both sides put in the same
order (pairs that differ by less than `--apart` points on either side do not count), and Kendall's
tau over all rules.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from analysis.intervals import mean_interval
from controller.config import DeploymentConfig
from controller.errors import UserError
from controller.runtime.launcher import LaunchError
from controller.runtime.resources import read_deployment_with
from controller.simulation.report.summary import summarize
from controller.simulation.synthetic import CalmThenBurst, synthesize
from controller.simulation.traces import Trace
from experiments.both_sides import serve_live, serve_simulated

RULES = (
    "toll+moore_hodgson",
    "batch+moore_hodgson",
    "deflect+fifo",
    "ampd+algorithm_2",
    "kv_cost+fifo",
    "always_remote+fifo",
)
TIME_LIMIT_S = 120.0
LOCAL_CHUNK_TOKENS = 256


def deployment(args: argparse.Namespace, rule: str) -> DeploymentConfig:
    """Prefill and decode workers behind our own binding of sessions. UserError."""
    policy, _, ordering = rule.partition("+")
    ours = policy in ("toll", "batch")
    return read_deployment_with(
        "local_1p2d",
        [
            ("router.attachment", "relay"),
            ("router.policy", policy),
            ("router.ordering.rule", ordering or "fifo"),
            ("router.ordering.window", 256 if ordering == "moore_hodgson" else 3),
            ("router.toll.local_chunk_tokens", LOCAL_CHUNK_TOKENS if ours else 0),
            ("router.late_binding", False),
            ("time_scale", args.time_scale),
            ("prefill.workers", args.prefill),
            ("decode.workers", args.decode),
        ],
    )


def live(config: DeploymentConfig, trace: Trace, folder: Path) -> float:
    """SLO attainment of the trace in a deployment."""
    return serve_live(config, trace, folder, TIME_LIMIT_S).summary.total.attainment or 0.0


def simulated(config: DeploymentConfig, trace: Trace) -> float:
    """SLO attainment of the trace in the simulator."""
    cluster, result = serve_simulated(config, trace)
    return summarize(result, cluster).attainment


def concordance(one: dict[str, float], other: dict[str, float], apart: float) -> tuple[int, int]:
    """(pairs in the same order, pairs that are `apart` on both sides)."""
    same = total = 0
    for a, b in combinations(one, 2):
        here, there = one[a] - one[b], other[a] - other[b]
        if min(abs(here), abs(there)) >= apart:
            total += 1
            same += here * there > 0
    return same, total


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Every rule on every seed; prints as it goes."""
    law = CalmThenBurst(
        calm_s=args.calm, burst_s=args.burst, calm_rate=args.calm_rate, burst_rate=args.burst_rate
    )
    configs = {rule: deployment(args, rule) for rule in args.rules}
    found: dict[str, dict[str, list[float]]] = {
        rule: {"live": [], "simulated": []} for rule in args.rules
    }
    for seed in range(args.seed, args.seed + args.seeds):
        trace = synthesize(law, seed, f"seed{seed}")
        for rule in args.rules if seed % 2 else reversed(args.rules):
            with tempfile.TemporaryDirectory() as folder:
                here = 100 * live(configs[rule], trace, Path(folder))
            there = 100 * simulated(configs[rule], trace)
            found[rule]["live"].append(here)
            found[rule]["simulated"].append(there)
            print(f"seed {seed} {rule:24} live {here:5.1f} % simulated {there:5.1f} %", flush=True)
    means = {
        side: {rule: float(np.mean(values[side])) for rule, values in found.items()}
        for side in ("live", "simulated")
    }
    same, pairs = concordance(means["live"], means["simulated"], args.apart)
    tau = kendalltau(list(means["live"].values()), list(means["simulated"].values())).statistic
    return {
        "seeds": args.seeds,
        "attainment_percent": {
            rule: {side: mean_interval(values[side]) for side in values}
            for rule, values in found.items()
        },
        "concordant_pairs": same,
        "pairs": pairs,
        "kendall_tau": round(float(tau), 3),
    }


def main() -> int:
    """JSON last; exit 2 with one line for what the operator can fix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    law = CalmThenBurst()
    add("--seeds", type=int, default=5, help="traces (default: %(default)s)")
    add("--seed", type=int, default=1, help="of the first trace (default: %(default)s)")
    add("--rules", nargs="+", default=list(RULES), metavar="RULE", help="placement+ordering")
    add("--apart", type=float, default=2.0, help="points that make a difference (%(default)g)")
    add("--time-scale", type=float, default=1.0, help="wall s per emulated s (%(default)g)")
    add("--prefill", type=int, default=1, help="prefill workers (default: %(default)s)")
    add("--decode", type=int, default=2, help="decode workers (default: %(default)s)")
    add("--calm", type=float, default=5.0, metavar="S", help="(default: %(default)g)")
    add("--burst", type=float, default=25.0, metavar="S", help="(default: %(default)g)")
    add("--calm-rate", type=float, default=law.calm_rate, help="sessions/s (%(default)g)")
    add("--burst-rate", type=float, default=law.burst_rate, help="sessions/s (%(default)g)")
    args = parser.parse_args()
    try:
        if args.seeds < 1 or len(args.rules) < 2:
            raise UserError("give at least 1 seed and 2 rules")
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
