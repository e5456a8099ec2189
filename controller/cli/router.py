# SPDX-License-Identifier: Apache-2.0
"""`equilibrium router`: the router component as a process of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "run the router component"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--config", required=True, type=Path, help="deployment file")
    parser.add_argument(
        "--run-dir", type=Path, help="folder of the decision log; default: that of the file"
    )

    parser.add_argument(
        "--replica", type=int, default=0, help="number among the routers of a deployment (0)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM."""
    from controller.runtime.components import run_component
    from controller.runtime.resources import read_deployment_with
    from controller.runtime.router.broker import Broker
    from controller.runtime.router.relay import Relay

    config = read_deployment_with(args.config)
    attached = Relay if config.router.attachment == "relay" else Broker
    router = attached(config, args.run_dir or args.config.resolve().parent, args.replica)
    return run_component(router.run())
