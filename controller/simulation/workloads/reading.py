# SPDX-License-Identifier: Apache-2.0
"""A workload from the text of any trace that is known.

Owns: the choice of the format, and what is done about a quantised clock. Does not own: the formats
(../trace_formats), opening files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from controller.simulation.trace_formats.frontier import REQUIRED_COLUMNS, frontier_rows
from controller.simulation.trace_formats.parse import FORMATS as TRACE_FORMATS
from controller.simulation.trace_formats.parse import parse_trace, trace_lines, trace_name
from controller.simulation.trace_shaping import spread_bins
from controller.simulation.traces import TraceError, clock_bin_s
from controller.simulation.workloads.bridge import from_trace
from controller.simulation.workloads.frontier import FrontierLengths, frontier_workload
from controller.simulation.workloads.workload import Workload

FORMATS = (*TRACE_FORMATS, "frontier")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a trace file does not say."""

    spread_bins: bool = True
    """Spread the arrivals of a quantised clock inside their bins (Mooncake's conversation trace
    has 3 s bins); otherwise they stay batches, and the workload's name says so."""
    seed: int = 0
    """Of the spreading."""
    frontier_lengths: FrontierLengths = FrontierLengths.WHOLE
    frontier_block_tokens: int = 16


def parse_workload(
    text: str, source: str, trace_format: str | None = None, options: ReadOptions | None = None
) -> Workload:
    """Parse a trace; `source` is its file name, which with the header decides the format.

    TraceError: one line with file and line of the first bad row. A request that is too long for a
    server stays in: the server rejects it.
    """
    options = options or ReadOptions()
    lines = trace_lines(text, source)
    if trace_format is not None and trace_format not in FORMATS:
        raise TraceError(f"{source}: unknown format {trace_format!r}; known: {', '.join(FORMATS)}")
    if trace_format == "frontier" or (trace_format is None and _is_frontier(lines)):
        return frontier_workload(
            frontier_rows(lines, source),
            source,
            trace_name(source),
            lengths=options.frontier_lengths,
            block_tokens=options.frontier_block_tokens,
        )
    trace = parse_trace(text, source, trace_format)
    width = clock_bin_s(trace)
    if width is None:
        return from_trace(trace)
    if options.spread_bins:
        name = f"{trace.name} ({width:g} s clock, spread)"
        return from_trace(replace(spread_bins(trace, options.seed), name=name))
    return from_trace(replace(trace, name=f"{trace.name} (batches every {width:g} s)"))


def _is_frontier(lines: list[str]) -> bool:
    header = next(line for line in lines if line.strip())
    return REQUIRED_COLUMNS[0] in [cell.strip().strip('"') for cell in header.split(",")]
