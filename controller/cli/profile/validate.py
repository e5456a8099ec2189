# SPDX-License-Identifier: Apache-2.0
"""`equilibrium profile validate`: predicted against measured, table and scatter plot."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from controller.costs.error_ranges import RangeError


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    add = parser.add_argument
    add("--profile", required=True, help="name of a shipped profile, or a file")
    add("--measurements", required=True, metavar="FILE", help="CSV, columns as for `profile fit`")
    add("--slowdown", type=float, default=1.0, metavar="X", help="multiply the profile's times")
    add("--out", type=Path, metavar="DIR", help="folder for validation.png and validation.csv")


def run(args: argparse.Namespace) -> int:
    """Compare, print, write."""
    import numpy as np

    from controller.cli.profile.tables import console, error_table
    from controller.costs.error_ranges import error_ranges, extrapolated
    from controller.costs.errors_report import step_errors
    from controller.costs.measurements import parse_measurements
    from controller.errors import UserError
    from controller.runtime.files import read_text
    from controller.runtime.resources import read_profile

    if not 0 < args.slowdown < math.inf:
        raise UserError(f"--slowdown {args.slowdown}: give a number above 0")
    profile = read_profile(args.profile)
    text = read_text(Path(args.measurements), "measurements")
    steps = parse_measurements(text, args.measurements)
    cost = profile.cost_model(args.slowdown)
    predicted = cost.steps_s(steps.batch, steps.context, steps.chunk, steps.pairs)
    outside = extrapolated(cost, steps)
    out = console()
    name = Path(args.measurements).name
    title = f"profile {profile.name} against {len(steps):,} steps of {name}"
    errors = step_errors(predicted, steps, "")
    rows = [("all", errors.overall), *((k.value, found) for k, found in errors.by_kind.items())]
    if outside.any() and not outside.all():
        for name, mask in (("inside what it was made from", ~outside), ("outside it", outside)):
            part = step_errors(predicted[mask], steps.take(mask), "")
            rows.append((name, part.overall))
    out.print(error_table(f"absolute percentage error, {title}", rows))
    out.print(_by_range(error_ranges(predicted, steps)))
    out.print(f"{int(np.sum(outside)):,} of {len(steps):,} steps are outside the profile's range")
    if args.out is not None:
        from analysis.profile_plot import write_validation

        for path in write_validation(args.out, title, predicted, steps, outside):
            out.print(f"wrote {path}")
    return 0


def _by_range(ranges: list[RangeError]) -> Table:
    from controller.cli.profile.tables import percent, table

    made = table("by range", ("steps", "median", "p95", "bias", "count"))
    for each in ranges:
        top = "and more" if each.high is None else f"to {each.high:,}"
        span = f"{each.low:,}" if each.low == each.high else f"{each.low:,} {top}"
        kind = each.kind.value.replace("_", " ")
        made.add_row(
            f"{kind}, {each.quantity} {span}",
            percent(each.errors.median_pct),
            percent(each.errors.p95_pct),
            f"{each.bias_pct:+.1f} %",
            f"{each.errors.count:,}",
        )
    return made
