# SPDX-License-Identifier: Apache-2.0
"""Azure CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`, wall clock, first row = 0 s."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from controller.simulation.trace_formats.cells import Fail, fail_at, shown, token_cell
from controller.simulation.trace_formats.rows import Row
from controller.simulation.traces import TraceError

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([0-9]{2}):?([0-9]{2}))?"
)


def azure_rows(lines: list[str], source: str) -> Iterator[Row]:
    """Every line in order; TraceError at the first bad one."""
    columns: tuple[int, ...] | None = None
    start: tuple[datetime, int] | None = None
    latest_s = 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fail = fail_at(source, number)
        cells = azure_cells(line)
        if columns is None:
            columns = _columns(cells, fail)
            continue
        if len(cells) <= max(columns):
            fail(f"{len(cells)} columns where {max(columns) + 1} are needed; complete the row")
        stamp = _time(cells[columns[0]], fail)
        start = start or stamp
        at_s = (stamp[0] - start[0]).total_seconds() + (stamp[1] - start[1]) / 1e9
        if at_s < latest_s:
            fail(
                f"TIMESTAMP {shown(cells[columns[0]])} is before the previous row's; sort the "
                "trace by TIMESTAMP"
            )
        latest_s = at_s
        yield Row(
            line=number,
            session_id=None,
            arrival_s=at_s,
            delay_s=None,
            input_tokens=token_cell(cells[columns[1]], AZURE_COLUMNS[1], fail),
            output_tokens=token_cell(cells[columns[2]], AZURE_COLUMNS[2], fail),
            block_ids=(),
        )
    if start is None:
        raise TraceError(f"{source}: only a header; give a trace with at least one request")


def azure_cells(line: str) -> list[str]:
    """The cells of a line; the format needs no quoting."""
    return [cell.strip().strip('"') for cell in line.split(",")]


def _columns(cells: list[str], fail: Fail) -> tuple[int, ...]:
    for name in AZURE_COLUMNS:
        if name not in cells:
            fail(f"column {name!r} is missing; the header is {','.join(AZURE_COLUMNS)}")
    return tuple(cells.index(name) for name in AZURE_COLUMNS)


def _time(text: str, fail: Fail) -> tuple[datetime, int]:
    """Whole seconds and nanoseconds apart: `%f` takes six digits, Azure writes seven."""
    match = _TIME.fullmatch(text)
    if not match:
        fail(f"TIMESTAMP is {shown(text)}; give YYYY-MM-DD HH:MM:SS.fffffff")
    seconds, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(seconds)
        if sign:
            offset = timedelta(hours=int(hours), minutes=int(minutes))
            moment = moment - offset if sign == "+" else moment + offset
    except (ValueError, OverflowError):
        fail(f"TIMESTAMP is {shown(text)}, which is no date and time")
    return moment, int((fraction or "0").ljust(9, "0"))
