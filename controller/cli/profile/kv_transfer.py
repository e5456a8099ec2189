# SPDX-License-Identifier: Apache-2.0
"""`equilibrium profile kv-transfer`: alpha and beta of real NIXL transfers."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from controller.cli.profile import quantities

if TYPE_CHECKING:
    from rich.table import Table

    from controller.costs.kv_fit import KvFit, TransferTimes
    from controller.runtime.profiling.nixl_sweep import SweepPlan

SCHEMA = "equilibrium.kv_transfer/1"
_SIZES = "256K,1M,2M,4M,8M,16M,32M,64M,128M,256M"
_BUSY = 1.5
_EPILOG = (
    "One process reads from another through NIXL, one transfer at a time: latency (alpha) and "
    "bandwidth (1/beta) of an idle link between two workers of this machine. Keep it idle."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--sizes", default=_SIZES, help="bytes, K, M, G; at least three (default: %(default)s)")
    add("--repeats", type=int, default=20, help="timed transfers a size (default: %(default)s)")
    add("--warm-up", type=int, default=3, help="untimed ones before them (default: %(default)s)")
    add(
        "--memory",
        choices=("auto", "dram", "vram"),
        default="auto",
        help="auto: GPU memory if torch sees a GPU (default)",
    )
    add("--devices", default="0,1", metavar="A,B", help="GPUs of the two sides (default: 0,1)")
    add(
        "--piece",
        metavar="SIZE",
        help="split each transfer into descriptors of this size, as KV lies in blocks",
    )
    add(
        "--transports",
        metavar="LIST",
        help="UCX_TLS of both sides, as in tcp,self; default: UCX chooses (shared memory here)",
    )
    add("--out", metavar="FILE", help="times and fit, .json; with --profile the new profile")
    add("--profile", help="write latency and bandwidth into a copy of this profile (needs --out)")
    add("--force", action="store_true", help="overwrite the output file")


def run(args: argparse.Namespace) -> int:
    """Sweep, fit, print, write."""
    from controller.cli.profile.tables import console
    from controller.costs.kv_fit import fit_transfers
    from controller.errors import UserError
    from controller.runtime.files import check_output, write_text
    from controller.runtime.profiling.nixl_sweep import check_installed, sweep
    from controller.runtime.resources import read_profile

    if args.profile is not None and args.out is None:
        raise UserError("--profile: say with --out where the new profile goes")
    if args.out is not None:
        check_output(args.out, (".json",), force=args.force)
    profile = None if args.profile is None else read_profile(args.profile)
    check_installed()
    plan = _plan(args)
    print(_head(plan), flush=True)
    times = sweep(plan, _done)
    fitted = fit_transfers(times)
    console().print(_table(fitted))
    print(
        f"latency {1e3 * fitted.latency_s:.4g} ms + bytes / {fitted.bandwidth_bytes_s / 1e9:.4g} "
        f"GB/s; R^2 {fitted.r_squared:.5f} (of logarithms {fitted.r_squared_log:.5f})"
    )
    if (spread := _spread(fitted)) > _BUSY:
        print(f"repetitions differ up to {spread:.1f}-fold: the machine was busy; repeat it idle")
    if profile is not None:
        from controller.costs.profile import dump_profile

        write_text(args.out, dump_profile(_with_transfer(profile, fitted, plan)))
        print(f"{args.out}: profile {profile.name} with this KV transfer")
    elif args.out is not None:
        write_text(args.out, json.dumps(_record(plan, fitted, times), indent=2) + "\n")
        print(f"wrote {args.out}")
    return 0


def _spread(fitted: KvFit) -> float:
    """Largest ratio of median to fastest repetition over the sizes."""
    return max(each.median_s / each.fastest_s for each in fitted.sizes)


def _done(times: TransferTimes) -> None:
    print(f"  {quantities.readable(times.bytes_moved)}", flush=True)


def _plan(args: argparse.Namespace) -> SweepPlan:
    from controller.errors import UserError
    from controller.runtime.profiling.nixl_memory import MemoryKind, gpus
    from controller.runtime.profiling.nixl_sweep import SweepPlan

    sizes = quantities.sizes(args.sizes, "--sizes")
    if len(sizes) < 3:
        raise UserError(f"--sizes {args.sizes}: give at least three, or nothing can be fitted")
    if args.repeats < 1 or args.warm_up < 0:
        raise UserError("--repeats must be at least 1, --warm-up at least 0")
    count = 0 if args.memory == "dram" else gpus()
    if args.memory == "vram" and count == 0:
        raise UserError("--memory vram: torch sees no GPU here; use --memory dram")
    return SweepPlan(
        sizes=sizes,
        repeats=args.repeats,
        warm_up=args.warm_up,
        memory=MemoryKind.VRAM if count else MemoryKind.DRAM,
        devices=_devices(args.devices, count),
        piece_bytes=None if args.piece is None else quantities.size(args.piece, "--piece"),
        transports=args.transports,
    )


def _devices(text: str, count: int) -> tuple[int, int]:
    """Two GPUs; with a single one both sides use it."""
    from controller.errors import UserError

    try:
        first, second = (int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--devices {text}: expected two numbers, 0,1") from None
    if count == 1:
        return 0, 0
    if count and not (0 <= first < count and 0 <= second < count):
        raise UserError(f"--devices {text}: torch sees GPUs 0 to {count - 1}")
    return first, second


def _head(plan: SweepPlan) -> str:
    where = "host memory" if plan.memory.value == "DRAM" else f"GPUs {plan.devices}"
    how = "UCX's own choice" if plan.transports is None else f"UCX_TLS={plan.transports}"
    size = plan.piece_bytes
    piece = "" if size is None else f", pieces of {quantities.readable(size)}"
    return f"NIXL reads between two processes, {where}, {how}{piece}, {plan.repeats} a size:"


def _table(fitted: KvFit) -> Table:
    from controller.cli.profile.tables import table

    columns = ("size", "median ms", "fastest ms", "slowest ms", "GB/s", "law ms", "residual")
    made = table("transfers (median of the repetitions against the law)", columns)
    for each in fitted.sizes:
        made.add_row(
            quantities.readable(each.bytes_moved),
            f"{1e3 * each.median_s:.4f}",
            f"{1e3 * each.fastest_s:.4f}",
            f"{1e3 * each.slowest_s:.4f}",
            f"{each.bytes_moved / each.median_s / 1e9:.3f}",
            f"{1e3 * each.predicted_s:.4f}",
            f"{100 * each.residual:+.1f} %",
        )
    return made


def _with_transfer(profile: Any, fitted: KvFit, plan: SweepPlan) -> Any:
    kv = profile.kv_transfer.model_copy(
        update={
            "latency_ms": 1e3 * fitted.latency_s,
            "bandwidth_gb_s": fitted.bandwidth_bytes_s / 1e9,
        }
    )
    note = f" KV transfer: {_head(plan).rstrip(':')} (equilibrium profile kv-transfer)."
    return profile.model_copy(update={"kv_transfer": kv, "provenance": profile.provenance + note})


def _record(plan: SweepPlan, fitted: KvFit, times: list[Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "memory": plan.memory.value,
        "devices": list(plan.devices),
        "piece_bytes": plan.piece_bytes,
        "transports": plan.transports,
        "latency_ms": 1e3 * fitted.latency_s,
        "bandwidth_gb_s": fitted.bandwidth_bytes_s / 1e9,
        "r_squared": fitted.r_squared,
        "r_squared_log": fitted.r_squared_log,
        "sizes": [
            {
                "bytes": each.bytes_moved,
                "times_ms": [1e3 * second for second in done.seconds],
                "median_ms": 1e3 * each.median_s,
                "predicted_ms": 1e3 * each.predicted_s,
                "residual_pct": 100 * each.residual,
            }
            for each, done in zip(fitted.sizes, times, strict=True)
        ],
    }
