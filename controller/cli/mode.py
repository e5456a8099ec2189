# SPDX-License-Identifier: Apache-2.0
"""`equilibrium mode`: let a running router act or only watch, and see what it would have done."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "act or shadow"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--run-dir", type=Path, default=Path("runs/latest"), help="run folder")
    parser.add_argument(
        "mode", nargs="?", choices=("act", "shadow"), help="switch to it; nothing: only report"
    )


def run(args: argparse.Namespace) -> int:
    """Switch, or print the mode and the shadow report."""
    from analysis.shadow_report import shadow_report
    from controller.runtime.router.decision_log import log_lines
    from controller.runtime.router.mode import Mode, get_mode, set_mode
    from controller.runtime.router.run_files import log_name

    if args.mode is not None:
        set_mode(args.run_dir, Mode(args.mode))
        print(f"{args.run_dir}: {args.mode} (takes effect within a second)")
        return 0
    print(f"{args.run_dir}: {get_mode(args.run_dir).value}")
    log = args.run_dir / log_name()
    report = shadow_report(log_lines(log))
    if report.differing_share is None:
        print("nothing was decided in shadow")
        return 0
    print(
        f"in shadow: {report.requests} requests, {report.differing_share:.1%} would have gone "
        f"elsewhere ({report.local_instead} local, {report.other_worker} to another worker)"
    )
    for reason, count in report.reasons:
        print(f"  {reason}: {count}")
    return 0
