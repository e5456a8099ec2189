# SPDX-License-Identifier: Apache-2.0
"""Trace files as text: Mooncake JSONL, with or without sessions, and Azure CSV.

Owns: parsing with one-line errors (file, line, what is wrong, what to do) and writing JSONL.
Does not own: opening files; what the values mean (traces).

Mooncake JSONL, one object a line: `timestamp` (ms from the start of the trace), `input_length`,
`output_length`, optionally `hash_ids` (one id for each started block of 512 prompt tokens).
With `session_id`, `input_length` counts the new tokens of the round, and a later round carries
`delay` (ms after the predecessor's answer) instead of `timestamp`: Dynamo's mooncake-delta.
Azure CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`, wall clock, first row = 0 s.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any, NoReturn

from controller.simulation.trace_shaping import with_prompts
from controller.simulation.traces import BLOCK_TOKENS, Session, Trace, TraceError, TraceRequest

FORMATS = ("mooncake", "azure")

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_AZURE_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([0-9]{2}):?([0-9]{2}))?"
)
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,200}")
_MAX_TOKENS = 1 << 24
_MAX_START_S = 86_400.0
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class _Row:
    """One line, checked by itself; what it means beside the others comes later."""

    line: int
    session_id: str | None
    arrival_s: float | None
    delay_s: float | None
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]


def parse_trace(text: str, source: str, trace_format: str | None = None) -> Trace:
    """Parse a trace; `source` is its file name, which also decides the format by default."""
    body = text.removeprefix("\ufeff")
    if not body.strip():
        raise TraceError(f"{source}: the file is empty; give a trace with at least one request")
    lines = [line.removesuffix("\r") for line in body.split("\n")]
    chosen = trace_format or _guess_format(lines, source)
    if chosen not in FORMATS:
        raise TraceError(f"{source}: unknown format {chosen!r}; known: {', '.join(FORMATS)}")
    read = _azure_rows if chosen == "azure" else _mooncake_rows
    return Trace(name=PurePath(source).stem or source, sessions=_sessions(read(lines, source)))


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
    suffix = PurePath(source).suffix.lower()
    if suffix in (".jsonl", ".json", ".ndjson"):
        return "mooncake"
    if suffix == ".csv":
        return "azure"
    first = next(line for line in lines if line.strip()).strip()
    if first.startswith("{"):
        return "mooncake"
    if _AZURE_COLUMNS[0] in _cells(first):
        return "azure"
    raise TraceError(
        f"{source}: neither Mooncake JSONL nor Azure CSV; give --format {' or '.join(FORMATS)}"
    )


# --- Mooncake JSONL ---------------------------------------------------------------------------


def _mooncake_rows(lines: list[str], source: str) -> Iterator[_Row]:
    seen: set[str] = set()
    latest_s = 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue

        def fail(what: str, number: int = number) -> NoReturn:
            raise TraceError(f"{source}:{number}: {what}")

        row = _mooncake_row(_json_object(line, fail), number, fail)
        _check_round(row, seen, fail)
        if row.arrival_s is not None:
            if row.arrival_s < latest_s:
                fail(
                    f"timestamp {row.arrival_s * 1000:g} ms is before the previous arrival's "
                    f"{latest_s * 1000:g} ms; sort the trace by timestamp"
                )
            latest_s = row.arrival_s
        if row.session_id is not None:
            seen.add(row.session_id)
        yield row


def _check_round(row: _Row, seen: set[str], fail: Callable[[str], NoReturn]) -> None:
    if row.delay_s is None:
        if row.session_id in seen:
            fail(
                f"session {row.session_id!r} has begun already; a later round needs 'delay' (ms "
                "after the previous answer) instead of 'timestamp'"
            )
    elif row.session_id is None:
        fail("'delay' without 'session_id'; name the session that this round continues")
    elif row.session_id not in seen:
        fail(
            f"a later round of session {row.session_id!r} stands before its first; put the row "
            "with 'timestamp' first"
        )


def _json_object(line: str, fail: Callable[[str], NoReturn]) -> dict[str, Any]:
    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number")

    try:
        value = json.loads(line, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        fail(f"broken JSON ({_shown(str(error))}); give one object a line")
    if not isinstance(value, dict):
        fail(f"expected a JSON object, found {type(value).__name__}; give one object a line")
    return value


def _mooncake_row(raw: dict[str, Any], number: int, fail: Callable[[str], NoReturn]) -> _Row:
    for key in ("input_length", "output_length"):
        if key not in raw:
            fail(
                f"{key!r} is missing; known keys: timestamp, input_length, output_length, hash_ids"
            )
    if ("timestamp" in raw) == ("delay" in raw):
        fail("give 'timestamp' for a first round or 'delay' for a later one, exactly one of them")
    input_tokens = _length(raw["input_length"], "input_length", fail)
    first = "timestamp" in raw
    time_s = _time_s(
        raw["timestamp" if first else "delay"], "timestamp" if first else "delay", fail
    )
    if first and time_s > _MAX_START_S:
        fail(
            f"timestamp is {time_s:g} s after the start; timestamps are milliseconds from the "
            "start of the trace: subtract the first one"
        )
    return _Row(
        line=number,
        session_id=_session_id(raw.get("session_id"), fail),
        arrival_s=time_s if first else None,
        delay_s=None if first else time_s,
        input_tokens=input_tokens,
        output_tokens=_length(raw["output_length"], "output_length", fail),
        block_ids=_block_ids(raw.get("hash_ids"), input_tokens, fail),
    )


def _length(value: object, key: str, fail: Callable[[str], NoReturn]) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        fail(f"{key} is {_shown(value)}; give a whole number of tokens")
    if not 1 <= value <= _MAX_TOKENS:
        fail(f"{key} is {_shown(value)}; give 1 to {_MAX_TOKENS} tokens")
    return value


def _time_s(value: object, key: str, fail: Callable[[str], NoReturn]) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        fail(f"{key} is {_shown(value)}; give milliseconds as a number")
    # Compared before any conversion: a huge integer has no float.
    if not 0 <= value < 1e15 or math.isnan(value):
        fail(f"{key} is {_shown(value)}; give a finite number of milliseconds, 0 or more")
    return value / 1000


def _session_id(value: object, fail: Callable[[str], NoReturn]) -> str | None:
    if value is None:
        return None
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    # It travels in an HTTP header.
    if not isinstance(text, str) or not _SESSION_ID.fullmatch(text):
        fail(
            f"session_id is {_shown(value)}; give 1 to 200 printable ASCII characters "
            "without blanks"
        )
    return text


def _block_ids(value: object, tokens: int, fail: Callable[[str], NoReturn]) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        fail(f"hash_ids is {_shown(value)}; give a list of whole numbers or leave it out")
    expected = -(-tokens // BLOCK_TOKENS)
    if len(value) != expected:
        fail(
            f"hash_ids has {len(value)} ids, an input_length of {tokens} needs {expected} (one for "
            f"each started block of {BLOCK_TOKENS} tokens); fix the row or leave hash_ids out"
        )
    return tuple(value)


# --- Azure CSV --------------------------------------------------------------------------------


def _azure_rows(lines: list[str], source: str) -> Iterator[_Row]:
    columns: tuple[int, ...] | None = None
    start: tuple[datetime, int] | None = None
    latest_s = 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue

        def fail(what: str, number: int = number) -> NoReturn:
            raise TraceError(f"{source}:{number}: {what}")

        cells = _cells(line)
        if columns is None:
            columns = _azure_columns(cells, fail)
            continue
        if len(cells) <= max(columns):
            fail(f"{len(cells)} columns where {max(columns) + 1} are needed; complete the row")
        stamp = _azure_time(cells[columns[0]], fail)
        start = start or stamp
        at_s = (stamp[0] - start[0]).total_seconds() + (stamp[1] - start[1]) / 1e9
        if at_s < latest_s:
            fail(
                f"TIMESTAMP {_shown(cells[columns[0]])} is before the previous row's; sort the "
                "trace by TIMESTAMP"
            )
        latest_s = at_s
        yield _Row(
            line=number,
            session_id=None,
            arrival_s=at_s,
            delay_s=None,
            input_tokens=_azure_length(cells[columns[1]], _AZURE_COLUMNS[1], fail),
            output_tokens=_azure_length(cells[columns[2]], _AZURE_COLUMNS[2], fail),
            block_ids=(),
        )
    if start is None:
        raise TraceError(f"{source}: only a header; give a trace with at least one request")


def _cells(line: str) -> list[str]:
    return [cell.strip().strip('"') for cell in line.split(",")]


def _azure_columns(cells: list[str], fail: Callable[[str], NoReturn]) -> tuple[int, ...]:
    for name in _AZURE_COLUMNS:
        if name not in cells:
            fail(f"column {name!r} is missing; the header is {','.join(_AZURE_COLUMNS)}")
    return tuple(cells.index(name) for name in _AZURE_COLUMNS)


def _azure_time(text: str, fail: Callable[[str], NoReturn]) -> tuple[datetime, int]:
    """Whole seconds and nanoseconds apart: `%f` takes six digits, Azure writes seven."""
    match = _AZURE_TIME.fullmatch(text)
    if not match:
        fail(f"TIMESTAMP is {_shown(text)}; give YYYY-MM-DD HH:MM:SS.fffffff")
    seconds, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(seconds)
        if sign:
            offset = timedelta(hours=int(hours), minutes=int(minutes))
            moment = moment - offset if sign == "+" else moment + offset
    except (ValueError, OverflowError):
        fail(f"TIMESTAMP is {_shown(text)}, which is no date and time")
    return moment, int((fraction or "0").ljust(9, "0"))


def _azure_length(text: str, column: str, fail: Callable[[str], NoReturn]) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        fail(f"{column} is {_shown(text)}; give a whole number of tokens")
    return _length(int(text), column, fail)


# --- rows to sessions -------------------------------------------------------------------------


def _sessions(rows: Iterator[_Row]) -> tuple[Session, ...]:
    """Group rows by session, in order of arrival; rows without one are sessions of their own."""
    grouped: dict[tuple[str, bool], list[TraceRequest]] = {}
    for row in rows:
        named = row.session_id is not None
        session_id = row.session_id if row.session_id is not None else f"line-{row.line}"
        rounds = grouped.setdefault((session_id, named), [])
        rounds.append(
            TraceRequest(
                arrival_s=row.arrival_s,
                session_id=session_id,
                round=len(rounds),
                think_s=row.delay_s or 0.0,
                prompt_tokens=row.input_tokens,
                new_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                block_ids=row.block_ids,
                line=row.line,
            )
        )
    return tuple(with_prompts(rounds) for rounds in grouped.values())


def _shown(value: object) -> str:
    """A value on one short line, whatever it holds."""
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except (ValueError, RecursionError):
        # Integers of thousands of digits and lists of thousands of levels have no text.
        text = "a huge value"
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
