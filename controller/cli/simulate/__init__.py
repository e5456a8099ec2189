# SPDX-License-Identifier: Apache-2.0
"""`equilibrium simulate`: a trace on a simulated cluster, in virtual time."""

from __future__ import annotations

import argparse
import os

from controller.cli.simulate.arguments import configure

__all__ = ["HELP", "configure", "run"]

HELP = "serve a trace on a simulated cluster"


def run(args: argparse.Namespace) -> int:
    """Simulate every seed, print, write; 0 whatever became of the requests."""
    # Small problems only: BLAS threads would wait for each other. Read when numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from controller.cli.simulate.command import simulate_all

    simulate_all(args)
    return 0
