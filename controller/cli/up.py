# SPDX-License-Identifier: Apache-2.0
"""`equilibrium up`: a deployment on this machine, up until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.config import DeploymentConfig
    from controller.runtime.launcher import Deployment

HELP = "start a deployment"
EXIT_FAILED = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="deployment file, or the name of a shipped one (local_1p2d)",
    )
    parser.add_argument(
        "--run-dir", metavar="DIR", help="make the run folder below DIR (run_dir in the file)"
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="port of the frontend (frontend.http_port)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="replace one key of the file; the value is YAML; may be repeated",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the processes and start nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Bring it up and wait; 0 when asked to stop, 1 when it failed."""
    # Imported here: --help needs neither YAML nor aiohttp.
    import asyncio

    config = _config(args)
    if args.dry_run:
        return _dry_run(config)
    return asyncio.run(_up(config))


def _config(args: argparse.Namespace) -> DeploymentConfig:
    from controller.runtime.resources import parse_override, read_deployment_with

    overrides = [parse_override(text) for text in args.set]
    if args.run_dir is not None:
        overrides.append(("run_dir", args.run_dir))
    if args.port is not None:
        overrides.append(("frontend.http_port", args.port))
    return read_deployment_with(args.config, overrides)


def _dry_run(config: DeploymentConfig) -> int:
    from controller.runtime.launcher import plan_here
    from controller.runtime.launcher.deployment import base_folder

    specs = plan_here(config, base_folder(config) / f"{config.name}-<time>-<pid>")
    width = max((len(spec.name) for spec in specs), default=0)
    for spec in specs:
        print(f"stage {spec.stage}  {spec.name:<{width}}  {shlex.join(spec.argv)}")
        print(f"{'':<9} {'':<{width}}  registers: {_registers(spec.endpoint, spec.instances)}")
    if not specs:
        print("nothing to start: every part of this deployment is external")
    return 0


def _registers(endpoint: str | None, instances: int) -> str:
    return "nothing" if endpoint is None else f"{endpoint} x{instances}"


async def _up(config: DeploymentConfig) -> int:
    import asyncio

    from controller.runtime.launcher import CancelOnSignals, Deployment, LaunchError

    with CancelOnSignals() as signals:
        try:
            async with Deployment.start(config, report=_print) as deployment:
                _print_ready(deployment)
                raise LaunchError(await deployment.failed())
        except LaunchError as error:
            print(f"equilibrium up: {error}", file=sys.stderr)
            return EXIT_FAILED
        except asyncio.CancelledError:
            if signals.received is None:
                raise
            with contextlib.suppress(OSError):  # the terminal may be what went away
                _print(f"stopped on {signals.received.name}")
            return 0


def _print(line: str) -> None:
    print(line, flush=True)


def _print_ready(deployment: Deployment) -> None:
    body = {
        "model": deployment.config.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 16,
    }
    _print(f"ready after {deployment.ready_after_s or 0.0:.1f} s: {deployment.url}/v1")
    print(
        f"  try: curl {deployment.url}/v1/chat/completions -H 'content-type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )
    if deployment.client_env:
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in deployment.client_env.items())
        print(f"  tokenizer for clients: {settings}")
    print("  Ctrl-C stops it", flush=True)
