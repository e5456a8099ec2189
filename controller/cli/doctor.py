# SPDX-License-Identifier: Apache-2.0
"""`equilibrium doctor`: is a deployment set up so that it can be measured and steered?"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict

from controller.cli import watching

HELP = "check a deployment"
EXIT_FINDINGS = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    watching.add_arguments(parser)
    parser.epilog = "Exit code 1 when a check found an error, 0 otherwise."
    add = parser.add_argument
    add("--looks", type=int, default=3, metavar="N", help="looks, --interval apart (3)")
    add("--namespace", metavar="NS", help="of the deployment, without generation suffix")
    add("--router-block-size", type=int, metavar="N", help="of a standalone router")
    add("--json", action="store_true", help="findings as one JSON array")


def run(args: argparse.Namespace) -> int:
    """Look a few times, then say what was found."""
    from controller.errors import UserError

    if args.looks < 1:
        raise UserError("--looks must be at least 1")
    return asyncio.run(_doctor(args))


async def _doctor(args: argparse.Namespace) -> int:
    from controller.estimation.doctor import Asked, Level, diagnose
    from controller.runtime.estimating import estimating

    where = watching.deployed(args)
    async with estimating(where, watching.estimator_params(args)) as it:
        estimate = [each async for each in it.ticks(args.looks)][-1]
        asked = Asked(it.discovery_failure, args.namespace, args.router_block_size)
    findings = diagnose(estimate, asked)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.level.value:<8} {finding.check.value:<11} {finding.what}")
            if finding.fix:
                print(f"{'':<21}fix: {finding.fix}")
    bad = any(finding.level is Level.ERROR for finding in findings)
    return EXIT_FINDINGS if bad else 0
