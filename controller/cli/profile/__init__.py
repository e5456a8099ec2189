# SPDX-License-Identifier: Apache-2.0
"""`equilibrium profile`: cost profiles: list, show, fit, follow a live worker, validate."""

from __future__ import annotations

import argparse
import os

from controller.cli.profile import fit, kv_transfer, live, show, validate

HELP = "cost profiles"
_ACTIONS = {
    "list": (show.configure_list, show.run_list, "the profiles that ship with the project"),
    "show": (show.configure, show.run, "what a profile is and what it predicts"),
    "fit": (fit.configure, fit.run, "make a profile from a table of measured steps"),
    "live": (live.configure, live.run, "make a profile by listening to live workers"),
    "validate": (validate.configure, validate.run, "predicted against measured steps"),
    "kv-transfer": (kv_transfer.configure, kv_transfer.run, "time NIXL transfers, fit the law"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (declare, _, summary) in _ACTIONS.items():
        child = actions.add_parser(name, help=summary, description=summary)
        declare(child)


def run(args: argparse.Namespace) -> int:
    """Run one action."""
    # The fits are many small problems: BLAS threads would only wait for each other, on a busy
    # machine a hundred times longer than the work takes. Read when numpy is first imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return _ACTIONS[args.action][1](args)
