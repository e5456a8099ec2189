# SPDX-License-Identifier: Apache-2.0
"""`equilibrium estimate`: in which regime a Dynamo deployment is, and what its routing costs."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli import watching

if TYPE_CHECKING:
    from controller.estimation.estimate import Estimate
    from controller.estimation.poa.report import RoutingReport

HELP = "estimate regime and price of anarchy"
_EPILOG = (
    "Needs no router of ours and no Prometheus. With --run-dir of a router of ours the decision "
    "log gives the routing loss; elsewhere --request-trace does (frontend: DYN_REQUEST_TRACE=1)."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = _EPILOG
    watching.add_arguments(parser)
    add = parser.add_argument
    add("--looks", type=int, default=3, metavar="N", help="looks of a one-shot estimate (3)")
    add("--watch", action="store_true", help="go on until Ctrl-C")
    add("--json", action="store_true", help="one JSON object an estimate")
    add("--metrics-port", type=int, metavar="N", help="with --watch: own /metrics on loopback")
    poa = parser.add_argument_group("price of anarchy")
    poa.add_argument("--decisions", type=Path, metavar="FILE", help="decision log of our router")
    poa.add_argument("--request-trace", type=Path, metavar="FILE", help="Dynamo's request trace")
    poa.add_argument(
        "--profile", metavar="NAME", help="cost profile: decode binding, prefill times"
    )
    poa.add_argument("--ttft-ms", type=float, default=1500.0, help="TTFT limit for a trace (1500)")


def run(args: argparse.Namespace) -> int:
    """Estimate; 0 when something could be read, 1 when no target answered."""
    from controller.errors import UserError

    if args.looks < 1 or not args.ttft_ms > 0:
        raise UserError("--looks must be at least 1, --ttft-ms above 0")
    if args.metrics_port is not None and not args.watch:
        raise UserError("--metrics-port needs --watch")
    return asyncio.run(_estimate(args))


async def _estimate(args: argparse.Namespace) -> int:
    from controller.runtime.estimating import estimating
    from controller.runtime.sources.routing import routing_reader

    where, params = watching.deployed(args), watching.estimator_params(args)
    routing = routing_reader(_decisions(args), args.request_trace, args.profile, args.ttft_ms / 1e3)
    show = _metrics(args.metrics_port)
    latest: Estimate | None = None
    async with estimating(where, params) as it:
        async for latest in it.ticks(None if args.watch else args.looks):
            if args.watch:
                report = routing(latest)
                show(latest, report)
                print(
                    _text(latest, report, args.json), end="\n" if args.json else "\n\n", flush=True
                )
        assert latest is not None
        if not args.watch:
            print(_text(latest, routing(latest), args.json))
        return 0 if latest.names else 1


def _text(estimate: Estimate, report: RoutingReport | None, as_json: bool) -> str:
    from controller.cli.estimate_lines import lines
    from controller.estimation.as_json import estimate_json

    if as_json:
        return json.dumps(estimate_json(estimate, report))
    return "\n".join(lines(estimate, report))


def _decisions(args: argparse.Namespace) -> Path | None:
    from controller.runtime.router.run_files import log_name

    named: Path | None = args.decisions
    if named is not None or args.run_dir is None:
        return named
    log: Path = args.run_dir / log_name()
    return log if log.is_file() else None


def _metrics(port: int | None) -> Callable[[Estimate, RoutingReport | None], None]:
    if port is None:
        return lambda estimate, routing: None
    from prometheus_client import CollectorRegistry, start_http_server

    from controller.errors import UserError
    from controller.runtime.estimation_metrics import EstimationMetrics

    registry = CollectorRegistry()
    metrics = EstimationMetrics(registry)
    try:
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise UserError(f"--metrics-port {port}: {error.strerror or error}") from None
    return metrics.show
