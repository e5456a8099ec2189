# SPDX-License-Identifier: Apache-2.0
"""`equilibrium simulate`: a trace on a simulated cluster, in virtual time."""

from __future__ import annotations

import argparse

from controller.cli.quick_start import quick_start
from controller.cli.simulate.arguments import configure

__all__ = ["HELP", "configure", "run"]

HELP = "serve a trace on a simulated cluster"


def run(args: argparse.Namespace) -> int:
    """Simulate every seed, print, write; 0 whatever became of the requests."""
    with quick_start():
        from controller.cli.simulate.command import simulate_all

        simulate_all(args)
    return 0
