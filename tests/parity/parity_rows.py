# SPDX-License-Identifier: Apache-2.0
"""The parity table: what a row is, when an attachment is worse than stock, how it reads. Pure.

A row knows every outcome that it may have, best first; an outcome that it does not know is worse
than all of them. Two equal outcomes are "as stock" only if the answers behind them are equal too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

STOCK = "stock"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a probe saw: a short stable value, and answers that must equal stock's."""

    value: str
    answers: Any = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    title: str
    outcomes: tuple[str, ...]
    """All values that its probe can give, best first."""
    worse_because: Mapping[str, str] = field(default_factory=dict)
    """By attachment: why it is worse than stock here. Needed where it is, and only there."""
    note: str = ""
    """What a reader should know; printed below the table."""


class Verdict(str, Enum):
    """An attachment beside stock, in one row."""

    SAME = "as stock"
    BETTER = "better"
    WORSE = "worse"


def verdict(row: Row, stock: Seen, ours: Seen) -> Verdict:
    """How an attachment compares."""
    if ours.value == stock.value:
        return Verdict.SAME if ours.answers == stock.answers else Verdict.WORSE
    return Verdict.BETTER if _rank(row, ours) < _rank(row, stock) else Verdict.WORSE


def cell(row: Row, attachment: str, stock: Seen, ours: Seen) -> str:
    """What the table says of an attachment."""
    found = verdict(row, stock, ours)
    if found is Verdict.SAME:
        return found.value
    what = "other answers" if ours.value == stock.value else ours.value
    because = row.worse_because.get(attachment)
    reason = f" ({because})" if found is Verdict.WORSE and because else ""
    return f"{found.value}: {what}{reason}"


def complaints(row: Row, seen: Mapping[str, Seen]) -> list[str]:
    """What is wrong with a row whatever the page says: nothing, if all is well.

    An outcome that nobody foresaw, an attachment that is worse without a reason, a reason that
    is not needed.
    """
    wrong = [
        f"{row.title}: {name} gives {one.value!r}, which the row does not know"
        for name, one in seen.items()
        if one.value not in row.outcomes
    ]
    stock = seen[STOCK]
    for name, ours in seen.items():
        worse = name != STOCK and verdict(row, stock, ours) is Verdict.WORSE
        if worse and name not in row.worse_because:
            wrong.append(f"{row.title}: {name} is {cell(row, name, stock, ours)}, and no reason")
        if not worse and name in row.worse_because:
            wrong.append(f"{row.title}: {name} has a reason to be worse, but it is not")
    return wrong


def page(rows: Sequence[Row], seen: Mapping[str, Mapping[str, Seen]], head: str) -> str:
    """The whole document; `seen` is by attachment, stock among them, and by title."""
    ours = [name for name in seen if name != STOCK]
    lines = [
        head.rstrip(),
        "",
        _line(["", "stock Dynamo", *ours]),
        _line(["---"] * (2 + len(ours))),
    ]
    for row in rows:
        stock = seen[STOCK][row.title]
        cells = [cell(row, name, stock, seen[name][row.title]) for name in ours]
        lines.append(_line([row.title, stock.value, *cells]))
    notes = [f"- {row.title}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def _rank(row: Row, seen: Seen) -> int:
    return row.outcomes.index(seen.value) if seen.value in row.outcomes else len(row.outcomes)
