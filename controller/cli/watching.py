# SPDX-License-Identifier: Apache-2.0
"""What `estimate` and `doctor` share: how the operator names a deployment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.estimation.estimate import EstimatorParams
    from controller.runtime.estimating import Deployed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the deployment is, and how it is looked at."""
    where = parser.add_argument_group("the deployment")
    where.add_argument("--url", metavar="URL", help="frontend, as in http://127.0.0.1:8000")
    where.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="URL",
        help="one more /metrics: a worker's system port, a router's (repeatable)",
    )
    where.add_argument(
        "--prometheus",
        nargs="?",
        const="",
        metavar="URL",
        help="read from a Prometheus server instead of scraping (default: PROMETHEUS_ENDPOINT)",
    )
    where.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="run folder of `equilibrium up`: frontend, router, model cards and decision log",
    )
    where.add_argument(
        "--file-kv", type=Path, metavar="DIR", help="folder of file discovery: model cards"
    )
    where.add_argument("--model", metavar="NAME", help="only this model (default: all)")
    where.add_argument(
        "--forward-passes",
        action="store_true",
        help="also follow the workers' forward passes on the event plane (needs --run-dir)",
    )
    parser.add_argument(
        "--interval", type=float, default=5.0, metavar="S", help="between looks (5)"
    )


def deployed(args: argparse.Namespace) -> Deployed:
    """The deployment that the arguments name. Raises UserError."""
    import json

    from controller.errors import UserError
    from controller.runtime.estimating import Deployed
    from controller.runtime.launcher.deployment import frontend_url
    from controller.runtime.launcher.environment import discovery_folder
    from controller.runtime.launcher.plan import CONFIG_FILE
    from controller.runtime.profiling.target import PoolChoice, of_run
    from controller.runtime.resources import read_deployment_with
    from controller.runtime.router.run_files import facts_name
    from controller.runtime.sources.promql import settings_from

    if not args.interval > 0:
        raise UserError("--interval must be above 0")
    url, targets, file_kv = args.url, list(args.target), args.file_kv
    if args.run_dir is not None:
        path = args.run_dir / CONFIG_FILE
        if not path.is_file():
            raise UserError(f"run folder {args.run_dir} has no {CONFIG_FILE}; name one of `up`")
        config = read_deployment_with(path)
        url = url or frontend_url(config)
        if file_kv is None and config.dynamo.discovery_backend == "file":
            file_kv = discovery_folder(config, args.run_dir.resolve())
        facts = args.run_dir / facts_name()
        if facts.is_file():
            port = json.loads(facts.read_text(encoding="utf-8"))["metrics_port"]
            targets.append(f"http://127.0.0.1:{port}")
    if args.forward_passes and args.run_dir is None:
        raise UserError("--forward-passes needs --run-dir: it joins the deployment's event plane")
    prometheus = None
    if args.prometheus is not None:
        prometheus = settings_from(os.environ, args.prometheus or None)
    if url is None and prometheus is None and not targets:
        raise UserError("name a deployment: --url URL, --run-dir DIR or --prometheus [URL]")
    if url is not None and "://" not in url:
        url = f"http://{url}"
    listen = of_run(args.run_dir, PoolChoice.BOTH) if args.forward_passes else None
    return Deployed(url, tuple(targets), prometheus, file_kv, listen)


def estimator_params(args: argparse.Namespace) -> EstimatorParams:
    """Looks every `--interval`, means over six of them and at least 30 s."""
    from controller.estimation.estimate import EstimatorParams

    return EstimatorParams(
        period_s=args.interval, window_s=max(30.0, 6 * args.interval), model=args.model
    )
