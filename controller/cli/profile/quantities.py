# SPDX-License-Identifier: Apache-2.0
"""Durations and sizes as an operator writes them: 120s, 2m, 64K, 1M."""

from __future__ import annotations

import math

from controller.errors import UserError

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_BYTES = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def seconds(text: str, flag: str) -> float:
    """`120`, `120s`, `2m`, `1h` in seconds. Raises UserError that names the flag."""
    number = text.rstrip("hms")
    unit = _SECONDS.get(text[len(number) :])
    value = _number(number)
    if unit is None or value is None or value <= 0:
        raise UserError(f"{flag} {text}: expected a time above 0 such as 120s or 2m")
    return value * unit


def sizes(text: str, flag: str) -> tuple[int, ...]:
    """`64K,1M,16M` in bytes, ascending. Raises UserError that names the flag."""
    found = sorted(size(part, flag) for part in text.split(","))
    if len(set(found)) < len(found):
        raise UserError(f"{flag} {text}: a size is there twice")
    return tuple(found)


def size(text: str, flag: str) -> int:
    """One size in bytes; K, M and G are powers of 1,024."""
    bare = text.strip().upper().removesuffix("IB").removesuffix("B")
    number = bare.rstrip("KMG")
    unit = _BYTES.get(bare[len(number) :])
    value = _number(number)
    if unit is None or value is None or value * unit < 1:
        raise UserError(f"{flag} {text}: expected a size such as 4096, 64K or 1M")
    return int(value * unit)


def readable(bytes_moved: float) -> str:
    """Bytes with the unit that keeps them short."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if bytes_moved >= factor:
            return f"{bytes_moved / factor:g} {unit}"
    return f"{bytes_moved:g} B"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
