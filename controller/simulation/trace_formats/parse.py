# SPDX-License-Identifier: Apache-2.0
"""A whole trace from text, whichever of the two replayable formats it has, and back to text.

Frontier CSV is read by controller.simulation.workloads: its rows do not all fit a `Trace`.
"""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

from controller.simulation.trace_formats.azure import AZURE_COLUMNS, azure_cells, azure_rows
from controller.simulation.trace_formats.mooncake import mooncake_rows
from controller.simulation.trace_formats.rows import sessions
from controller.simulation.traces import Trace, TraceError

FORMATS = ("mooncake", "azure")


def parse_trace(text: str, source: str, trace_format: str | None = None) -> Trace:
    """Parse a trace; `source` is its file name, which also decides the format by default."""
    lines = trace_lines(text, source)
    chosen = trace_format or _guess_format(lines, source)
    if chosen not in FORMATS:
        raise TraceError(f"{source}: unknown format {chosen!r}; known: {', '.join(FORMATS)}")
    read = azure_rows if chosen == "azure" else mooncake_rows
    return Trace(name=trace_name(source), sessions=sessions(read(lines, source)))


def trace_lines(text: str, source: str) -> list[str]:
    """The lines without their ends; TraceError for an empty file."""
    body = text.removeprefix("\ufeff")
    if not body.strip():
        raise TraceError(f"{source}: the file is empty; give a trace with at least one request")
    return [line.removesuffix("\r") for line in body.split("\n")]


def trace_name(source: str) -> str:
    """What reports call the trace: the file's name without its extension."""
    return PurePath(source.removesuffix(".gz")).stem or source


def dump_trace(trace: Trace) -> str:
    """The trace as Mooncake JSONL with sessions; times to the millisecond."""
    lines = []
    for request in trace.requests():
        row: dict[str, Any] = {"session_id": request.session_id}
        if request.arrival_s is not None:
            row["timestamp"] = round(request.arrival_s * 1000)
        else:
            row["delay"] = round(request.think_s * 1000)
        row |= {"input_length": request.new_tokens, "output_length": request.output_tokens}
        if request.block_ids:
            row["hash_ids"] = list(request.block_ids)
        lines.append(json.dumps(row, separators=(",", ":")))
    return "".join(f"{line}\n" for line in lines)


def _guess_format(lines: list[str], source: str) -> str:
    suffix = PurePath(source.removesuffix(".gz")).suffix.lower()
    if suffix in (".jsonl", ".json", ".ndjson"):
        return "mooncake"
    if suffix == ".csv":
        return "azure"
    first = next(line for line in lines if line.strip()).strip()
    if first.startswith("{"):
        return "mooncake"
    if AZURE_COLUMNS[0] in azure_cells(first):
        return "azure"
    raise TraceError(
        f"{source}: neither Mooncake JSONL nor Azure CSV; give --format {' or '.join(FORMATS)}"
    )
