# SPDX-License-Identifier: Apache-2.0
"""The `equilibrium` command: finds the command's module, turns UserError into one line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from controller import __version__
from controller.errors import UserError

COMMANDS: dict[str, str] = {
    "up": "start a deployment behind the router and keep it up until Ctrl-C",
    "demo": "compare stock, always-remote and AMPD on one trace, calm then burst",
    "load": "replay a trace against an OpenAI endpoint and report SLO attainment",
    "simulate": "serve a trace on a simulated cluster: SLO attainment and where the time goes",
    "mode": "let a running router act or only watch (shadow), and see what would differ",
    "estimate": "in which regime a deployment is, and what its routing costs",
    "doctor": "check a deployment: discovery, scrape, identity, signals; each finding with its fix",
    "explain": "why one request went where it went: every candidate's estimates",
    "profile": "cost profiles: show, fit, learn from live workers, validate, time KV transfers",
    "router": "run the router component (started by `up`, or by hand beside Dynamo)",
    "worker": "run emulated workers (started by `up`)",
}
EXIT_USER_ERROR = 2


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"controller.cli.{command}")


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equilibrium",
        description="Adaptive router and controller for NVIDIA Dynamo prefill/decode serving.",
    )
    parser.add_argument("--version", action="version", version=f"equilibrium {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in argv if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        child = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            # Only the chosen command is imported: --help stays fast and needs no Dynamo.
            _module(name).configure(child)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (0 done, 1 failed, 2 the user can fix it)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser(arguments).parse_args(arguments)
    try:
        return int(_module(args.command).run(args))
    except UserError as error:
        print(f"equilibrium {args.command}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
