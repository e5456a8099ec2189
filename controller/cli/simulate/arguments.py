# SPDX-License-Identifier: Apache-2.0
"""Arguments of `equilibrium simulate`, and the parts of them that are texts.

Imports nothing heavy: `--help` stays fast.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from controller.errors import UserError

_DESCRIPTION = (
    "Serve a trace on a simulated cluster, in virtual time, by the engine law of the emulated "
    "workers and the rules of the live router. Without --config: one prefill and one decode "
    "worker. Exit codes: 0 simulated (whatever became of the requests), 2 something to fix."
)
_EPILOG = (
    "synthetic workloads: poisson, calm_then_burst, clients, toolbench, gaia, hotpotqa, dureader, "
    "reasoning, closed_loop, rollouts; an unknown KEY lists the known ones. Requests that fit no "
    "worker are counted as rejected. The same arguments give the same bytes."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "--trace",
        required=True,
        metavar="TRACE",
        help="Mooncake JSONL, Azure CSV or Frontier CSV (also .gz), the name of a shipped trace, "
        "or synthetic:NAME[,KEY=VALUE...]",
    )
    _configure_cluster(parser.add_argument_group("cluster and router"))
    _configure_trace(parser.add_argument_group("trace"))
    _configure_run(parser.add_argument_group("run"))
    _configure_output(parser.add_argument_group("output"))


def _configure_cluster(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--config",
        metavar="FILE",
        help="simulation file or deployment file, or the name of a shipped one (simulate_2p2d)",
    )
    add("--prefill", type=int, metavar="N", help="prefill workers; 0: all prefills are local")
    add("--decode", type=int, metavar="N", help="decode workers")
    add("--profile", metavar="NAME", help="cost profile of all workers, shipped name or path")
    add("--policy", metavar="NAME", help="placement rule (router.policy)")
    add("--slo-ttft-ms", type=float, metavar="MS", help="slo.ttft_ms")
    add("--slo-itl-ms", type=float, metavar="MS", help="slo.itl_ms")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="replace one key of the file, as in router.cost_error=0.2; the value is YAML; "
        "repeatable",
    )


def _configure_trace(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--format", choices=("mooncake", "azure", "frontier"), help="default: by name and content")
    add("--rate-scale", type=float, default=1.0, metavar="X", help="X times as many arrivals a s")
    add("--duration", type=float, metavar="S", help="only what begins before S")
    add("--limit", type=int, metavar="N", help="only the first N requests")
    add(
        "--spread-bins",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="spread arrivals inside the bins of a quantised trace clock (default: spread)",
    )
    add(
        "--frontier-lengths",
        choices=("whole", "new"),
        default="whole",
        help="what prompt lengths of a Frontier trace count (%(default)s)",
    )
    add(
        "--frontier-block-tokens",
        type=int,
        default=16,
        metavar="N",
        help="block size of its block_hash_ids (%(default)s)",
    )


def _configure_run(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--seed",
        type=int,
        metavar="N",
        help="of synthetic workloads, spread arrivals, rules and cost errors (router.seed, 0)",
    )
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="K",
        help="K runs, seeds N to N+K-1: means with 95 %% intervals",
    )
    add("--until", type=float, metavar="S", help="end of the run (until_s)")
    add(
        "--cohort",
        metavar="START:END",
        help="count only what begins in these seconds of the trace, so that warm-up and the end "
        "do not flatter; utilisation and preemptions stay those of the whole run",
    )


def _configure_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for summary.json, config.json, requests and series; with --seeds a folder a "
        "seed inside",
    )
    add("--file-format", choices=("parquet", "csv"), default="parquet", help="%(default)s")
    add("--series-step", type=float, default=1.0, metavar="S", help="bin of the series (1 s)")
    add(
        "--chrome-trace",
        metavar="FILE",
        help="spans of every request by worker, .json for Perfetto; about 1 KB a request; of the "
        "first seed",
    )
    add("--force", action="store_true", help="overwrite output files")
    add("--json", action="store_true", help="print one line of JSON instead of tables")
    add("--quiet", action="store_true", help="no notes and no progress bar")


def parse_cohort(text: str | None) -> tuple[float, float]:
    """`START:END` in seconds; either may be empty. Raises UserError."""
    if text is None:
        return 0.0, math.inf
    start, colon, end = text.partition(":")
    try:
        bounds = float(start or 0), float(end or math.inf)
    except ValueError:
        bounds = (math.nan, math.nan)
    if not colon or not 0 <= bounds[0] < bounds[1]:
        raise UserError(f"--cohort {text!r}: give START:END in trace seconds, START below END")
    return bounds


def check(args: argparse.Namespace) -> None:
    """Refuse numbers that no run can have. Raises UserError."""
    for flag, value, least in (
        ("--prefill", args.prefill, 0),
        ("--decode", args.decode, 1),
        ("--seeds", args.seeds, 1),
        ("--seed", args.seed, 0),
        ("--limit", args.limit, 1),
        ("--frontier-block-tokens", args.frontier_block_tokens, 1),
    ):
        if value is not None and value < least:
            raise UserError(f"{flag} {value}: give at least {least}")
    for flag, value in (
        ("--rate-scale", args.rate_scale),
        ("--duration", args.duration),
        ("--until", args.until),
        ("--series-step", args.series_step),
    ):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UserError(f"{flag} {value}: give a number above 0")


def changes(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """Keys of the simulation file that flags replace."""
    flags = {
        "profile": args.profile,
        "router.policy": args.policy,
        "router.seed": args.seed,
        "slo.ttft_ms": args.slo_ttft_ms,
        "slo.itl_ms": args.slo_itl_ms,
        "until_s": args.until,
    }
    return [(key, value) for key, value in flags.items() if value is not None]
