# SPDX-License-Identifier: Apache-2.0
"""What no measurement can tell of a profile: the arguments that say it, and the file they make."""

from __future__ import annotations

import argparse
import getpass
import itertools
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.costs.fit import FitOptions, StepFit
    from controller.costs.live_fit import Fit
    from controller.costs.profile import Profile

UNKNOWN = "not stated"
_COUNTS = ("max_num_batched_tokens", "max_num_seqs", "block_size", "num_gpu_blocks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that describe the hardware and the engine."""
    add = parser.add_argument_group("about the worker").add_argument
    add("--name", required=True, help="name of the profile")
    add("--model", help=f"model that was served; default: what is known of it, or {UNKNOWN!r}")
    add("--gpu", default=UNKNOWN, help="GPU and how many (default: %(default)s)")
    add("--precision", default=UNKNOWN, help="bf16, fp8, ... (default: %(default)s)")
    for short, what in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"), ("ep", "expert")):
        add(f"--{short}", type=int, default=1, metavar="N", help=f"{what} parallelism (1)")
    add("--engine", default=UNKNOWN, help="vllm, sglang, ... (default: %(default)s)")
    add("--engine-version", default=UNKNOWN, help="its version (default: %(default)s)")
    add("--max-num-batched-tokens", type=int, metavar="N", help="tokens of one engine step")
    add("--max-num-seqs", type=int, metavar="N", help="sequences of one engine step")
    add("--block-size", type=int, metavar="N", help="tokens of one KV block")
    add("--num-gpu-blocks", type=int, metavar="N", help="KV blocks of a worker")
    add(
        "--capture-sizes",
        default="auto",
        metavar="N,N,...",
        help="CUDA graph sizes that decode steps are padded to, ascending; none; auto: vLLM's "
        "usual ones if the steps show them (default)",
    )
    add("--license", default=UNKNOWN, help="licence of the numbers (default: %(default)s)")
    add("--provenance", help="where the numbers come from; default: who measured, when, how")
    add(
        "--kv-from",
        metavar="PROFILE",
        help="take the KV transfer from this profile; without it KV moves in no time, until "
        "`equilibrium profile kv-transfer --profile` has measured it",
    )


def fit_options(args: argparse.Namespace, max_chunk_tokens: int) -> FitOptions:
    """What the fit has to be told. Raises UserError."""
    from dataclasses import replace

    from controller.costs.fit import FitOptions
    from controller.runtime.resources import read_profile

    _check(args)
    options = FitOptions(
        max_chunk_tokens=args.max_num_batched_tokens or max_chunk_tokens,
        capture_sizes=capture_sizes(args.capture_sizes),
    )
    if args.kv_from is None:
        return options
    transfer = read_profile(args.kv_from).kv_transfer
    return replace(
        options,
        kv_latency_s=transfer.latency_ms / 1e3,
        kv_bytes_per_token=transfer.bytes_per_token,
        kv_bandwidth_bytes_s=transfer.bandwidth_gb_s * 1e9,
    )


def _check(args: argparse.Namespace) -> None:
    """What a profile cannot hold is refused before the work, not after it."""
    from controller.errors import UserError

    for name in (*_COUNTS, "tp", "pp", "dp", "ep"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: give a number from 1 up")
    for name in ("name", "license", "model", "gpu", "precision", "engine", "engine_version"):
        text = getattr(args, name)
        if text is not None and not text.strip():
            raise UserError(f"--{name.replace('_', '-')}: must not be empty")
    if args.seed < 0:
        raise UserError(f"--seed {args.seed}: give a number from 0 up")


def make_profile(
    args: argparse.Namespace, fitted: StepFit, how: str, learned: dict[str, Any] | None = None
) -> Profile:
    """The profile of a fit. `how` ends the provenance; `learned` are engine facts found out."""
    from controller.costs.profile import Engine, Parallelism, Profile
    from controller.costs.tables import MAX_CHUNK

    facts: dict[str, Any] = {"max_num_batched_tokens": int(fitted.tables.options[MAX_CHUNK])}
    stated = {name: getattr(args, name) for name in _COUNTS}
    for source in (learned or {}, stated):
        facts |= {name: value for name, value in source.items() if value is not None}
    model = facts.pop("model", None)
    return Profile.from_fit(
        fitted.tables,
        fitted.errors,
        name=args.name,
        provenance=args.provenance or _provenance(args, how),
        license=args.license,
        model=args.model or model or UNKNOWN,
        gpu=args.gpu,
        precision=args.precision,
        parallelism=Parallelism(tp=args.tp, pp=args.pp, dp=args.dp, ep=args.ep),
        engine=Engine(name=args.engine, version=args.engine_version, **facts),
    )


def fit_function(args: argparse.Namespace) -> Fit:
    """The fit that the arguments ask for."""
    from controller.costs.capture_sizes import fit_finding_sizes
    from controller.costs.fit import fit_step_tables

    return fit_finding_sizes if args.capture_sizes == "auto" else fit_step_tables


def capture_sizes(text: str) -> tuple[int, ...]:
    """`1,2,4,8` as numbers; none for `none` and `auto`. Raises UserError."""
    from controller.errors import UserError

    if text in ("none", "auto"):
        return ()
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--capture-sizes {text}: expected whole numbers, 1,2,4,8") from None
    if any(low >= high for low, high in itertools.pairwise(sizes)) or sizes[0] < 1:
        raise UserError(f"--capture-sizes {text}: expected ascending numbers from 1 up")
    return sizes


def _provenance(args: argparse.Namespace, how: str) -> str:
    day = time.strftime("%Y-%m-%d")
    kv = f"KV transfer as in {args.kv_from}" if args.kv_from else "KV transfer not measured (free)"
    return f"Fitted {day} by {getpass.getuser()} from {how}. {kv}."
