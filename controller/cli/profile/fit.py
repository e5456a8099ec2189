# SPDX-License-Identifier: Apache-2.0
"""`equilibrium profile fit`: a table of measured steps in, a profile out."""

from __future__ import annotations

import argparse

from controller.cli.profile import about

_EPILOG = (
    "columns: batch, context_tokens (KV tokens of all decodes), prefill_tokens, "
    "prefill_context_tokens (what the prompt tokens build on), step_ms"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("--measurements", required=True, metavar="FILE", help="CSV of steps")
    parser.add_argument("--out", required=True, metavar="FILE", help="the profile, .json")
    parser.add_argument("--force", action="store_true", help="overwrite the output file")
    parser.add_argument("--seed", type=int, default=0, help="of the held-out share")
    about.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Fit, write, print the held-out error."""
    from dataclasses import replace
    from pathlib import Path

    from controller.cli.profile.tables import console, fit_errors
    from controller.costs.measurements import parse_measurements
    from controller.costs.profile import dump_profile
    from controller.runtime.files import check_output, read_text, write_text

    check_output(args.out, (".json",), force=args.force)
    text = read_text(Path(args.measurements), "measurements")
    steps = parse_measurements(text, args.measurements)
    options = about.fit_options(args, max_chunk_tokens=max(1, int(steps.chunk.max())))
    options = replace(options, seed=args.seed, overlap=True)
    fitted = about.fit_function(args)(steps, options)
    how = f"{len(steps):,} measured steps of {args.measurements}"
    write_text(args.out, dump_profile(about.make_profile(args, fitted, how)))
    out = console()
    out.print(f"{args.out}: profile {args.name} from {how}")
    out.print(fit_errors(fitted.errors))
    return 0
