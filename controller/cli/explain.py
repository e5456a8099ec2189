# SPDX-License-Identifier: Apache-2.0
"""`equilibrium explain`: why one request went where it went, with every candidate's estimates."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "explain a decision"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("request_id", metavar="REQUEST_ID", help="the id, or how it begins")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/latest"), help="run folder")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    from analysis.explain import explain
    from controller.errors import UserError
    from controller.runtime.router.decision_log import log_lines
    from controller.runtime.router.run_files import replica_logs

    logs = replica_logs(args.run_dir)
    if not logs:
        raise UserError(
            f"no decision log in {args.run_dir}: give a run folder with --run-dir, or "
            "router.decision_log.max_mb is 0"
        )
    found = [line for log in logs for line in explain(log_lines(log), args.request_id)]
    if not found:
        raise UserError(
            f"no request {args.request_id}, or several that begin so, in {args.run_dir}; the log "
            "may have been rotated (router.decision_log)"
        )
    print("\n".join(found))
    return 0
