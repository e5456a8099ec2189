# SPDX-License-Identifier: Apache-2.0
"""Single values of a trace line, checked, with the words of their refusal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NoReturn

from controller.simulation.traces import TraceError

Fail = Callable[[str], NoReturn]
"""Raises TraceError for the line at hand."""

MAX_TOKENS = 1 << 24
MAX_ID = 1 << 62

_SESSION_ID = re.compile(r"[\x21-\x7e]{1,200}")
_SHOWN = 40


def fail_at(source: str, line: int) -> Fail:
    """The refusal of one line of one file."""

    def fail(what: str) -> NoReturn:
        raise TraceError(f"{source}:{line}: {what}")

    return fail


def shown(value: object) -> str:
    """A value on one short line, whatever it holds."""
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except (ValueError, RecursionError):
        # Integers of thousands of digits and lists of thousands of levels have no text.
        text = "a huge value"
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def token_count(value: object, key: str, fail: Fail) -> int:
    """A whole number of at least one token."""
    if isinstance(value, bool) or not isinstance(value, int):
        fail(f"{key} is {shown(value)}; give a whole number of tokens")
    if not 1 <= value <= MAX_TOKENS:
        fail(f"{key} is {shown(value)}; give 1 to {MAX_TOKENS} tokens")
    return value


def token_cell(text: str, column: str, fail: Fail) -> int:
    """The same from a CSV cell."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        fail(f"{column} is {shown(text)}; give a whole number of tokens")
    return token_count(int(text), column, fail)


def seconds_cell(text: str, column: str, fail: Fail) -> float:
    """A finite number of seconds, not negative."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        fail(f"{column} is {shown(text)}; give a finite number of seconds, 0 or more")
    return value


def session_name(value: object, fail: Fail) -> str | None:
    """An identifier that can travel in an HTTP header; None stays None."""
    if value is None:
        return None
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _SESSION_ID.fullmatch(text):
        fail(
            f"session_id is {shown(value)}; give 1 to 200 printable ASCII characters without blanks"
        )
    return text
