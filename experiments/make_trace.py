# SPDX-License-Identifier: Apache-2.0
"""Write the small synthetic trace that ships with the project (calm, then a burst).

    python experiments/make_trace.py            # dynamo_configs/traces/calm_then_burst.jsonl

The same arguments give the same file. The last line of output is a JSON summary.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from controller.errors import UserError
from controller.simulation.lengths import Lengths
from controller.simulation.synthetic import CalmThenBurst, phase_load, synthesize
from controller.simulation.trace_formats import dump_trace

DEFAULT_OUT = Path(__file__).parents[1] / "dynamo_configs" / "traces" / "calm_then_burst.jsonl"
DEFAULT_SEED = 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Write a synthetic trace: calm, then a burst.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSONL file, replaced")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of all draws")
    law = CalmThenBurst()
    for field in fields(CalmThenBurst):
        flag = "--" + field.name.replace("_", "-")
        default = getattr(law, field.name)
        if isinstance(default, Lengths):
            parser.add_argument(
                flag,
                type=float,
                nargs=4,
                metavar=("MEAN", "SIGMA", "LOW", "HIGH"),
                default=[default.mean, default.sigma, default.low, default.high],
                help="tokens: clipped lognormal",
            )
        else:
            parser.add_argument(flag, type=float, default=default, help=" ")
    return parser


def _law(args: argparse.Namespace) -> CalmThenBurst:
    values = {field.name: getattr(args, field.name) for field in fields(CalmThenBurst)}
    for name, value in values.items():
        if isinstance(value, list):
            mean, sigma, low, high = value
            values[name] = Lengths(mean, sigma, int(low), int(high))
    return CalmThenBurst(**values)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, print what is in it."""
    args = _parser().parse_args(argv)
    try:
        law = _law(args)
        trace = synthesize(law, args.seed, args.out.stem)
        text = dump_trace(trace)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")
    except (UserError, OSError) as error:
        print(f"make_trace: {error}", file=sys.stderr)
        return 2
    end_s = law.calm_s + law.burst_s
    phases = {"calm": (0.0, law.calm_s), "burst": (law.calm_s, end_s)}
    summary = {
        "file": str(args.out),
        "bytes": len(text.encode()),
        "seed": args.seed,
        "phases": {
            name: asdict(phase_load(trace, *span))
            for name, span in phases.items()
            if span[1] > span[0]
        },
    }
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
