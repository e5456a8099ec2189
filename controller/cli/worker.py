# SPDX-License-Identifier: Apache-2.0
"""`equilibrium worker`: emulated workers of one role in one process."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "run emulated workers"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--config", required=True, type=Path, help="deployment file")
    parser.add_argument(
        "--run-dir", type=Path, help="folder for facts about the workers; default: that of the file"
    )
    parser.add_argument("--role", required=True, choices=("prefill", "decode"))
    parser.add_argument("--index", type=int, default=0, help="number of the first worker")
    parser.add_argument("--count", type=int, default=1, help="workers in this process")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM."""
    from controller.runtime.components import run_component
    from controller.runtime.emulated.serve import serve_workers
    from controller.runtime.resources import read_deployment_with

    config = read_deployment_with(args.config)
    run_dir = args.run_dir or args.config.resolve().parent
    return run_component(serve_workers(config, args.role, args.index, args.count, run_dir))
