# SPDX-License-Identifier: Apache-2.0
"""`equilibrium demo`: stock, always-remote and AMPD side by side on one trace."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

HELP = "compare stock, always-remote and AMPD on one trace"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--config", default="local_1p2d", help="deployment file or shipped name")
    parser.add_argument("--trace", default="calm_then_burst", help="trace file or shipped name")
    parser.add_argument(
        "--burst-at", type=float, default=20.0, help="trace second where the burst begins"
    )
    parser.add_argument("--out", type=Path, help="result folder; default: runs/demo-<time>")
    parser.add_argument(
        "--time-scale", type=float, help="wall seconds per emulated second (slow machines: 2)"
    )
    parser.add_argument("--time-limit", type=float, default=90.0, help="per scenario, emulated s")


def run(args: argparse.Namespace) -> int:
    """Run the three scenarios; 0 only if all of them served every request."""
    from analysis.demo_report import print_report, write_report
    from controller.errors import UserError
    from controller.runtime.demo.compare import SCENARIOS, run_scenario
    from controller.runtime.load import Phase, read_trace, served_all
    from controller.runtime.resources import Kind, find, read_deployment_with

    config = read_deployment_with(args.config)
    if args.time_scale is not None:
        if not args.time_scale > 0:
            raise UserError(f"--time-scale {args.time_scale}: give a number above 0")
        config = config.model_copy(update={"time_scale": args.time_scale})
    trace = read_trace(find(Kind.TRACE, args.trace))
    phases = (Phase("calm", 0.0, args.burst_at), Phase("burst", args.burst_at, float("inf")))
    out = args.out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)

    results = []
    for number, scenario in enumerate(SCENARIOS, 1):
        print(f"[{number}/{len(SCENARIOS)}] {scenario.title}", flush=True)
        with _Meter() as meter:
            results.append(
                asyncio.run(
                    run_scenario(
                        config, scenario, trace, phases, out, args.time_limit, meter.line, meter
                    )
                )
            )
    write_report(results, config, trace.name, out)
    print_report(results, config, out)
    return 0 if all(served_all(result.summary) for result in results) else 1


class _Meter:
    """A progress line that overwrites itself on a terminal and stays silent elsewhere."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()

    def __enter__(self) -> _Meter:
        return self

    def __exit__(self, *exc: object) -> None:
        self._show("")

    def line(self, text: str) -> None:
        """A line of the launcher; only worth showing when something goes wrong later."""
        self._show(text)

    def __call__(self, progress: object) -> None:
        from controller.runtime.load import Progress

        if isinstance(progress, Progress):
            self._show(
                f"  {progress.elapsed_s:5.0f} s  {progress.done}/{progress.intended} requests, "
                f"{progress.running} running, {progress.failed} failed"
            )

    def _show(self, text: str) -> None:
        if self._tty:
            print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)
