# SPDX-License-Identifier: Apache-2.0
"""Mooncake JSONL, with or without sessions.

One object a line: `timestamp` (ms from the start of the trace), `input_length`, `output_length`,
optionally `hash_ids` (one id for each started block of 512 prompt tokens). With `session_id`,
`input_length` counts the new tokens of the round, and a later round carries `delay` (ms after the
predecessor's answer) instead of `timestamp`: Dynamo's mooncake-delta.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from controller.simulation.trace_formats.cells import (
    MAX_ID,
    Fail,
    fail_at,
    session_name,
    shown,
    token_count,
)
from controller.simulation.trace_formats.rows import Row
from controller.simulation.traces import BLOCK_TOKENS

_MAX_START_S = 86_400.0


def mooncake_rows(lines: list[str], source: str) -> Iterator[Row]:
    """Every line in order; TraceError at the first bad one."""
    seen: set[str] = set()
    latest_s = 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fail = fail_at(source, number)
        row = _row(_json_object(line, fail), number, fail)
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


def _check_round(row: Row, seen: set[str], fail: Fail) -> None:
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


def _json_object(line: str, fail: Fail) -> dict[str, Any]:
    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number")

    try:
        value = json.loads(line, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        fail(f"broken JSON ({shown(str(error))}); give one object a line")
    if not isinstance(value, dict):
        fail(f"expected a JSON object, found {type(value).__name__}; give one object a line")
    return value


def _row(raw: dict[str, Any], number: int, fail: Fail) -> Row:
    for key in ("input_length", "output_length"):
        if key not in raw:
            fail(
                f"{key!r} is missing; known keys: timestamp, input_length, output_length, hash_ids"
            )
    if ("timestamp" in raw) == ("delay" in raw):
        fail("give 'timestamp' for a first round or 'delay' for a later one, exactly one of them")
    input_tokens = token_count(raw["input_length"], "input_length", fail)
    first = "timestamp" in raw
    key = "timestamp" if first else "delay"
    time_s = _time_s(raw[key], key, fail)
    if first and time_s > _MAX_START_S:
        fail(
            f"timestamp is {time_s:g} s after the start; timestamps are milliseconds from the "
            "start of the trace: subtract the first one"
        )
    return Row(
        line=number,
        session_id=session_name(raw.get("session_id"), fail),
        arrival_s=time_s if first else None,
        delay_s=None if first else time_s,
        input_tokens=input_tokens,
        output_tokens=token_count(raw["output_length"], "output_length", fail),
        block_ids=_block_ids(raw.get("hash_ids"), input_tokens, fail),
    )


def _time_s(value: object, key: str, fail: Fail) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        fail(f"{key} is {shown(value)}; give milliseconds as a number")
    # Compared before any conversion: a huge integer has no float.
    if not 0 <= value < 1e15 or math.isnan(value):
        fail(f"{key} is {shown(value)}; give a finite number of milliseconds, 0 or more")
    return value / 1000


def _block_ids(value: object, tokens: int, fail: Fail) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        fail(f"hash_ids is {shown(value)}; give a list of whole numbers or leave it out")
    if not all(-MAX_ID <= item <= MAX_ID for item in value):
        fail(f"hash_ids is {shown(value)}; give numbers of at most 62 bits")
    expected = -(-tokens // BLOCK_TOKENS)
    if len(value) != expected:
        fail(
            f"hash_ids has {len(value)} ids, an input_length of {tokens} needs {expected} (one for "
            f"each started block of {BLOCK_TOKENS} tokens); fix the row or leave hash_ids out"
        )
    return tuple(value)
