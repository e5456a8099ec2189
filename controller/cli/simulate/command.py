# SPDX-License-Identifier: Apache-2.0
"""What `equilibrium simulate` does with its arguments: read, run every seed, write, print."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controller.cli.simulate.arguments import changes, check, parse_cohort
from controller.cli.simulate.progress import Meter
from controller.cli.simulate.tables import print_tables
from controller.errors import UserError
from controller.runtime.files import check_output
from controller.runtime.resources import parse_override, replace_key
from controller.runtime.simulation import outputs
from controller.runtime.simulation.inputs import read_profiles, read_simulation, read_workload
from controller.simulation.cluster import ClusterSpec, SimOptions, SimResult, Simulation
from controller.simulation.config import SimulationConfig, groups_of
from controller.simulation.configured import assumptions, cluster_of, options_of
from controller.simulation.report.chrome import chrome_events
from controller.simulation.report.rows import request_columns
from controller.simulation.report.series import Samples, run_in_pieces, run_sampled, time_series
from controller.simulation.report.summary import Cohort, SimSummary, summarize, summary_to_dict
from controller.simulation.workloads.frontier import FrontierLengths
from controller.simulation.workloads.reading import ReadOptions
from controller.simulation.workloads.shaping import limit_duration, limit_requests, scale_rate
from controller.simulation.workloads.workload import Workload

_POOLS = ("prefill", "decode")
_PIECES = 200
"""Of a run whose progress is shown."""


@dataclass(frozen=True)
class Run:
    """One seed."""

    seed: int
    result: SimResult
    summary: SimSummary
    samples: Samples | None


def simulate_all(args: argparse.Namespace) -> None:
    """Everything. Raises UserError before anything is written."""
    check(args)
    cohort = Cohort(*parse_cohort(args.cohort))
    config = read_simulation(args.config, lambda raw: _change(raw, args))
    profiles = read_profiles(config)
    cluster, options = cluster_of(config, profiles), options_of(config)
    if args.out is not None:
        outputs.check_folder(args.out, force=args.force)
    if args.chrome_trace is not None:
        check_output(args.chrome_trace, (".json",), force=args.force)
    seeds = range(options.seed, options.seed + args.seeds)
    workloads = _workloads(args)
    with Meter(quiet=args.quiet or args.json) as meter:
        for line in assumptions(config, profiles):
            meter.note(line)
        runs = [
            _run(args, workloads(seed), cluster, replace(options, seed=seed), cohort, meter)
            for seed in seeds
        ]
    _write(args, config, cluster, runs)
    if args.json:
        print(json.dumps(_report(config, cluster, runs), allow_nan=False))
    else:
        print_tables(config, cluster, [(run.seed, run.result, run.summary) for run in runs])


def _change(raw: dict[str, Any], args: argparse.Namespace) -> None:
    for pool, workers in zip(_POOLS, (args.prefill, args.decode), strict=True):
        raw[pool] = groups_of(raw.get(pool, 1))
        if workers is not None:
            _set_workers(raw[pool], pool, workers)
    if args.profile is not None:
        _forget_profiles(raw)
    for key, value in (*changes(args), *(parse_override(text) for text in args.set)):
        replace_key(raw, _in_group(raw, key), value)


def _set_workers(groups: Any, pool: str, workers: int) -> None:
    if isinstance(groups, list) and len(groups) != 1:
        raise UserError(
            f"--{pool} {workers}: the file has {len(groups)} groups of {pool} workers; use "
            f"--set {pool}.0.workers={workers}"
        )
    if isinstance(groups, list) and isinstance(groups[0], dict):
        groups[0]["workers"] = workers


def _forget_profiles(raw: dict[str, Any]) -> None:
    """--profile means all workers, also those whose group names one."""
    for pool in _POOLS:
        for group in raw[pool] if isinstance(raw[pool], list) else ():
            if isinstance(group, dict) and isinstance(group.get("emulated"), dict):
                group["emulated"].pop("profile", None)


def _in_group(raw: dict[str, Any], key: str) -> str:
    """`decode.workers` means the only group of a pool."""
    pool, dot, rest = key.partition(".")
    alone = pool in _POOLS and isinstance(raw[pool], list) and len(raw[pool]) == 1
    return f"{pool}.0.{rest}" if alone and dot and not rest[:1].isdecimal() else key


def _workloads(args: argparse.Namespace) -> Callable[[int], Workload]:
    """The workload of a seed."""

    def workload(seed: int) -> Workload:
        options = ReadOptions(
            spread_bins=args.spread_bins,
            seed=seed,
            frontier_lengths=FrontierLengths(args.frontier_lengths),
            frontier_block_tokens=args.frontier_block_tokens,
        )
        load = scale_rate(read_workload(args.trace, args.format, options), args.rate_scale)
        if args.duration is not None:
            load = limit_duration(load, args.duration)
        return load if args.limit is None else limit_requests(load, args.limit)

    return workload


def _run(
    args: argparse.Namespace,
    workload: Workload,
    cluster: ClusterSpec,
    options: SimOptions,
    cohort: Cohort,
    meter: Meter,
) -> Run:
    simulation = Simulation(workload, cluster, options)
    samples = None
    with meter.run(f"seed {options.seed}", len(workload)) as show:
        if args.out is not None:
            samples = run_sampled(simulation, args.series_step, lambda at_s: show(simulation.ended))
        elif meter.shown:
            run_in_pieces(simulation, _piece_s(workload), lambda at_s: show(simulation.ended))
        else:
            simulation.advance(options.until_s)
    result = simulation.result()
    return Run(options.seed, result, summarize(result, cluster, cohort), samples)


def _piece_s(workload: Workload) -> float:
    own = workload.arrival_s[workload.after < 0]
    return max(1.0, float(own[-1]) / _PIECES)


def _write(
    args: argparse.Namespace, config: SimulationConfig, cluster: ClusterSpec, runs: list[Run]
) -> None:
    def fill(folder: Path) -> None:
        outputs.write_json(folder, "config", config.model_dump(mode="json", by_alias=True))
        outputs.write_json(folder, "summary", _report(config, cluster, runs))
        for run in runs:
            place = folder if len(runs) == 1 else folder / f"seed-{run.seed}"
            place.mkdir(exist_ok=True)
            rows = request_columns(run.result, cluster)
            outputs.write_table(place, "requests", rows, args.file_format)
            if run.samples is not None:
                series = time_series(run.result, run.samples)
                outputs.write_table(place, "series", series, args.file_format)

    if args.out is not None:
        outputs.write_folder(args.out, fill)
    if args.chrome_trace is not None:
        outputs.write_chrome_trace(args.chrome_trace, chrome_events(runs[0].result, cluster))


def _report(config: SimulationConfig, cluster: ClusterSpec, runs: list[Run]) -> dict[str, Any]:
    """What the summary file and the JSON line say; the same arguments, the same bytes."""
    from controller.cli.simulate.seeds import intervals

    head: dict[str, Any] = {
        "name": config.name,
        "policy": config.router.policy,
        "prefill_workers": len(cluster.prefill),
        "decode_workers": len(cluster.decode),
        "slo": config.slo.model_dump(),
    }
    each = [
        {"seed": run.seed, "workload": run.result.workload.name, **summary_to_dict(run.summary)}
        for run in runs
    ]
    if len(runs) == 1:
        return head | each[0]
    return head | {"intervals": intervals([run.summary for run in runs]), "runs": each}
