# SPDX-License-Identifier: Apache-2.0
"""`equilibrium profile live`: a profile of one's own deployment, by letting it run."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.profile import about, live_lines, quantities

if TYPE_CHECKING:
    from controller.costs.live_fit import LiveFit
    from controller.costs.live_passes import Pass
    from controller.runtime.profiling.live import Cards, Followed
    from controller.runtime.profiling.target import LiveTarget

_EPILOG = (
    "Listens only; nothing is sent to the workers and no router of ours is needed. A vLLM worker "
    "reports its passes when it was started with DYN_FORWARDPASS_METRIC_PORT set. Times are of "
    "the deployment's clock (wall clock, unless its time_scale says otherwise). Only what the "
    "traffic shows is learned: the profile says where it extrapolates."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--duration", default="120s", help="how long to listen: 120s, 2m (default: %(default)s)")
    add("--out", required=True, metavar="FILE", help="the profile, .json")
    add("--force", action="store_true", help="overwrite the output file")
    add("--follow", action="store_true", help="go on until Ctrl-C and write every new fit to --out")
    add(
        "--per-worker", action="store_true", help="a profile a worker: X.json becomes X.WORKER.json"
    )
    add("--steps-out", metavar="FILE", help="the steps learned from as for `profile fit`, .csv")
    add("--refit-every", default="10s", metavar="TIME", help="default: %(default)s")
    add("--half-life", default="60s", metavar="TIME", help="of what is known of a busy shape (60s)")
    add(
        "--warm-up", type=int, default=20, metavar="N", help="first passes of a worker to skip (20)"
    )
    add("--seed", type=int, default=0, help="of the sample that is kept")
    where = parser.add_argument_group("whom to listen to (default: --run-dir runs/latest)")
    where.add_argument("--run-dir", type=Path, metavar="DIR", help="run folder of `equilibrium up`")
    where.add_argument("--config", metavar="FILE", help="deployment file whose workers run")
    where.add_argument("--namespace", metavar="NS", help="NS.prefill.generate, NS.backend.generate")
    where.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="NS.COMPONENT.ENDPOINT",
        help="workers of this endpoint (repeatable)",
    )
    where.add_argument(
        "--pool",
        choices=("both", "prefill", "decode"),
        default="both",
        help="workers that are fitted together; `both` only if they are equal (default)",
    )
    where.add_argument("--discovery-backend", help="env var: DYN_DISCOVERY_BACKEND | default: etcd")
    where.add_argument("--request-plane", help="env var: DYN_REQUEST_PLANE | default: tcp")
    where.add_argument("--event-plane", help="env var: DYN_EVENT_PLANE | default: zmq")
    about.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Listen, fit, write."""
    from controller.costs.live_fit import LiveFit, LiveOptions
    from controller.errors import UserError
    from controller.runtime.files import check_output
    from controller.runtime.profiling.live import follow

    check_output(args.out, (".json",), force=args.force)
    if args.steps_out is not None:
        check_output(args.steps_out, (".csv",), force=args.force)
    if args.warm_up < 0:
        raise UserError(f"--warm-up {args.warm_up}: give a number from 0 up")
    duration_s = quantities.seconds(args.duration, "--duration")
    options = LiveOptions(
        warm_up_passes=args.warm_up,
        refit_every_s=quantities.seconds(args.refit_every, "--refit-every"),
        half_life_s=quantities.seconds(args.half_life, "--half-life"),
        seed=args.seed,
    )
    fit_options = about.fit_options(args, max_chunk_tokens=2048)
    fit = about.fit_function(args)
    target = _target(args)
    print(f"listening to {', '.join(target.endpoints)}", flush=True)

    def told(name: str, live: LiveFit, cards: Cards) -> None:
        print(f"{time.strftime('%H:%M:%S')} {live_lines.progress(name, live.state())}", flush=True)
        if args.follow:
            _write(args, name, live, cards)

    followed = asyncio.run(
        follow(
            target,
            lambda: LiveFit(options, fit_options, fit),
            args.per_worker,
            None if args.follow else duration_s,
            told,
        )
    )
    return _finish(args, target, followed)


def _target(args: argparse.Namespace) -> LiveTarget:
    import os

    from controller.config import DynamoConfig
    from controller.errors import UserError
    from controller.runtime.profiling.target import PoolChoice, of_config, of_names, of_run

    pools = PoolChoice(args.pool)
    given = [args.run_dir, args.config, args.namespace or args.endpoint or None]
    if sum(each is not None for each in given) > 1:
        raise UserError("give one of --run-dir, --config, and --namespace or --endpoint")
    if args.config is not None:
        return of_config(args.config, pools)
    if args.namespace is None and not args.endpoint:
        return of_run(args.run_dir or Path("runs/latest"), pools)
    planes = {
        "discovery_backend": (args.discovery_backend, "DYN_DISCOVERY_BACKEND", "etcd"),
        "request_plane": (args.request_plane, "DYN_REQUEST_PLANE", "tcp"),
        "event_plane": (args.event_plane, "DYN_EVENT_PLANE", "zmq"),
    }
    chosen = {
        key: flag or os.environ.get(variable) or default
        for key, (flag, variable, default) in planes.items()
    }
    try:
        dynamo = DynamoConfig.model_validate(chosen)
    except ValueError:
        raise UserError(
            f"unknown discovery backend or plane: {', '.join(chosen.values())}"
        ) from None
    return of_names(args.namespace, args.endpoint, dynamo, pools)


def _finish(args: argparse.Namespace, target: LiveTarget, followed: Followed) -> int:
    """The last fit of every worker or pool is written; nothing learned is an error."""
    from controller.cli.profile.tables import console, fit_errors
    from controller.errors import UserError

    if not followed.messages:
        raise UserError(
            f"no forward pass was reported at {', '.join(target.endpoints)}: are workers there "
            "(names, discovery), and do they report (vLLM: DYN_FORWARDPASS_METRIC_PORT)?"
        )
    written = 0
    for name, fit in followed.fits.items():
        fitted, state = fit.in_force, fit.state()
        if fitted is None:
            print(live_lines.too_few(name, state))
            continue
        path = _write(args, name, fit, followed.cards)
        written += 1
        print(f"{path}: {live_lines.progress(name, state)}; {followed.lost:,} messages were lost")
        for warning in live_lines.warnings(state):
            print(f"  {warning}")
        console().print(fit_errors(fitted.errors))
    if not written:
        raise UserError("too little traffic for a fit; nothing was written")
    return 0


def _write(args: argparse.Namespace, name: str, fit: LiveFit, cards: Cards) -> Path:
    """The profile, and the steps behind it; returns the profile's path."""
    from dataclasses import asdict

    from controller.costs.profile import dump_profile
    from controller.runtime.files import write_text

    assert fit.in_force is not None
    state = fit.state()
    how = f"{state.passes:,} forward passes that live workers reported ({live_lines.seen(state)})"
    profile = about.make_profile(args, fit.in_force, how, asdict(cards))
    if args.steps_out is not None:
        write_text(_path(args, args.steps_out, name), _steps(fit.kept()))
    path = _path(args, args.out, name)
    write_text(path, dump_profile(profile))
    return path


def _path(args: argparse.Namespace, given: str, name: str) -> Path:
    path = Path(given)
    return path.with_suffix(f".{name}{path.suffix}") if args.per_worker else path


def _steps(kept: Sequence[Pass]) -> str:
    """CSV of the passes with at most one prompt: only theirs are known exactly."""
    from controller.costs.measurements import format_measurements

    return format_measurements(
        (one.batch, one.context, one.chunk, one.history, 1e3 * one.wall_s)
        for one in kept
        if one.prefills < 2
    )
