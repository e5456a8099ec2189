# SPDX-License-Identifier: Apache-2.0
"""Frontier CSV (`trace_replay` of the Frontier simulator, arXiv 2605.21312), row by row.

Required columns: `arrived_at` (s), `num_prefill_tokens`, `num_decode_tokens`. Optional:
`session_id`, `cohort`, `priority` (lower is more urgent, as in vLLM), `block_hash_ids` ("11|22",
one id for each block of the engine that made the trace; the file does not say how large a block
is), `tool_call_latency` (s), `thinking_depth`, `thinking_round_plans_json` (a list of
{num_prefill_tokens, num_decode_tokens}, the last of them equal to the row's own lengths).
What the lengths of several rounds mean is decided in ../workloads/frontier.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.simulation.trace_formats.cells import (
    MAX_ID,
    Fail,
    fail_at,
    seconds_cell,
    session_name,
    shown,
    token_count,
)
from controller.simulation.traces import TraceError

REQUIRED_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
DEFAULT_TOOL_S = 0.001
"""Pause between rounds where the row gives none: Frontier's own default."""


@dataclass(frozen=True, slots=True)
class FrontierRow:
    """One line. `rounds` are (prompt tokens, output tokens), at least one."""

    line: int
    arrival_s: float
    session_id: str | None
    cohort: str | None
    priority: int
    block_ids: tuple[int, ...]
    tool_s: float
    rounds: tuple[tuple[int, int], ...]


def frontier_rows(lines: list[str], source: str) -> Iterator[FrontierRow]:
    """Every line in order; TraceError at the first bad one."""
    columns: dict[str, int] | None = None
    latest_s = 0.0
    empty = True
    for number, cells in _csv_lines(lines, source):
        fail = fail_at(source, number)
        if columns is None:
            columns = _columns(cells, fail)
            continue
        if len(cells) != len(columns):
            fail(f"{len(cells)} columns where the header has {len(columns)}; complete the row")
        row = _row({name: cells[at] for name, at in columns.items()}, number, fail)
        if row.arrival_s < latest_s:
            fail(
                f"arrived_at {row.arrival_s:g} is before the previous row's {latest_s:g}; sort the "
                "trace by arrived_at"
            )
        latest_s = row.arrival_s
        empty = False
        yield row
    if empty:
        raise TraceError(f"{source}: only a header; give a trace with at least one request")


def _csv_lines(lines: list[str], source: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            fail_at(source, number)(f"broken CSV ({error}); fix the quoting")
        if any(cells):
            yield number, cells


def _columns(cells: list[str], fail: Fail) -> dict[str, int]:
    for name in REQUIRED_COLUMNS:
        if name not in cells:
            fail(f"column {name!r} is missing; the header needs {','.join(REQUIRED_COLUMNS)}")
    if len(set(cells)) != len(cells):
        fail("a column appears twice; name each once")
    return {name: at for at, name in enumerate(cells)}


def _row(cells: dict[str, str], number: int, fail: Fail) -> FrontierRow:
    prompt, output = (_tokens(cells[name], name, fail) for name in REQUIRED_COLUMNS[1:])
    tool = cells.get("tool_call_latency", "")
    return FrontierRow(
        line=number,
        arrival_s=seconds_cell(cells["arrived_at"], "arrived_at", fail),
        session_id=session_name(cells.get("session_id") or None, fail),
        cohort=cells.get("cohort") or None,
        priority=_whole(cells.get("priority") or "0", "priority", fail),
        block_ids=_block_ids(cells.get("block_hash_ids", ""), fail),
        tool_s=seconds_cell(tool, "tool_call_latency", fail) if tool else DEFAULT_TOOL_S,
        rounds=_rounds(cells, (prompt, output), fail),
    )


def _rounds(
    cells: dict[str, str], lengths: tuple[int, int], fail: Fail
) -> tuple[tuple[int, int], ...]:
    text = cells.get("thinking_round_plans_json", "")
    rounds = _plans(text, fail) if text else (lengths,)
    depth = cells.get("thinking_depth", "")
    if depth and _whole(depth, "thinking_depth", fail) != len(rounds):
        fail(f"thinking_depth is {shown(depth)}, the row has {len(rounds)} round plans")
    if rounds[-1] != lengths:
        fail(f"the last round plan is {rounds[-1]}, the row's own lengths are {lengths}")
    return rounds


def _plans(text: str, fail: Fail) -> tuple[tuple[int, int], ...]:
    try:
        plans = json.loads(text)
    except (ValueError, RecursionError):
        fail(f"thinking_round_plans_json is {shown(text)}; give a JSON list of round plans")
    if not isinstance(plans, list) or not plans or not all(isinstance(p, dict) for p in plans):
        fail(f"thinking_round_plans_json is {shown(text)}; give a JSON list of round plans")
    return tuple(
        (
            token_count(plan.get("num_prefill_tokens"), "a round's num_prefill_tokens", fail),
            token_count(plan.get("num_decode_tokens"), "a round's num_decode_tokens", fail),
        )
        for plan in plans
    )


def _block_ids(text: str, fail: Fail) -> tuple[int, ...]:
    body = text.removeprefix("[").removesuffix("]").strip()
    if not body:
        return ()
    parts: Sequence[str] = body.split("|" if "|" in body else ",")
    return tuple(_whole(part.strip(), "block_hash_ids", fail) for part in parts)


def _tokens(text: str, column: str, fail: Fail) -> int:
    return token_count(_whole(text, column, fail), column, fail)


def _whole(text: str, column: str, fail: Fail) -> int:
    """A whole number; data frames write it as 7.0 where a column has gaps."""
    if not re.fullmatch(r"[+-]?[0-9]{1,19}(\.0{1,9})?", text):
        fail(f"{column} is {shown(text)}; give whole numbers")
    value = int(text.partition(".")[0])
    if not -MAX_ID <= value <= MAX_ID:
        fail(f"{column} is {shown(text)}; give numbers of at most 62 bits")
    return value
