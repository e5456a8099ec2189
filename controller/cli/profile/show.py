# SPDX-License-Identifier: Apache-2.0
"""`equilibrium profile show` and `list`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.costs.profile import Profile


def configure_list(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `show`."""
    parser.add_argument("profile", help="name of a shipped profile, or a file")


def run_list(args: argparse.Namespace) -> int:
    """One line a shipped profile; a broken one says why."""
    from controller.cli.profile.tables import console, table
    from controller.errors import UserError
    from controller.runtime.resources import Kind, read_profile, shipped

    made = table("shipped profiles", ("name", "model", "GPU", "TP", "engine", "held-out error"))
    for name, path in shipped(Kind.PROFILE).items():
        try:
            profile = read_profile(path)
        except UserError as error:
            made.add_row(name, str(error), "", "", "", "")
            continue
        fitted = profile.fit_error
        shown = "-" if fitted is None else f"{fitted.overall.median_pct:.1f} %"
        engine = f"{profile.engine.name} {profile.engine.version}"
        tp = str(profile.parallelism.tp)
        made.add_row(name, profile.model, profile.gpu, tp, engine, shown)
    console().print(made)
    return 0


def run(args: argparse.Namespace) -> int:
    """What it is, where it comes from, what it predicts, how wrong it was."""
    from controller.cli.profile.tables import console, fit_error, predictions
    from controller.runtime.resources import read_profile

    profile = read_profile(args.profile)
    out = console()
    for line in _facts(profile):
        out.print(line)
    out.print(predictions(profile))
    if profile.fit_error is None:
        out.print("no fit error: these numbers were not fitted to measurements")
    else:
        out.print(fit_error(profile.fit_error))
    return 0


def _facts(profile: Profile) -> Iterator[str]:
    shape, engine, kv = profile.parallelism, profile.engine, profile.kv_transfer
    blocks = "unknown" if engine.num_gpu_blocks is None else f"{engine.num_gpu_blocks:,}"
    yield f"{profile.name}: {profile.model} on {profile.gpu}, {profile.precision}"
    yield f"  parallelism  TP {shape.tp}, PP {shape.pp}, DP {shape.dp}, EP {shape.ep}"
    yield (
        f"  engine       {engine.name} {engine.version}, up to "
        f"{engine.max_num_batched_tokens:,} tokens and {engine.max_num_seqs:,} sequences a step"
    )
    yield f"  KV           blocks of {engine.block_size} tokens, {blocks} a worker"
    yield (
        f"  KV transfer  {kv.latency_ms:g} ms + {kv.bytes_per_token:,.0f} bytes a token at "
        f"{kv.bandwidth_gb_s:g} GB/s"
    )
    if profile.speculation is not None:
        verified = profile.speculation.verified_tokens
        emitted = profile.speculation.emitted_tokens
        yield f"  speculation  {verified} tokens verified, {emitted:g} emitted a step"
    yield f"  provenance   {profile.provenance}"
    yield f"  licence      {profile.license}"
