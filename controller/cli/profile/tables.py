# SPDX-License-Identifier: Apache-2.0
"""Tables of the profile commands: errors by range, predictions at standard points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from controller.costs.errors_report import Ape, FitErrors
    from controller.costs.profile import Profile
    from controller.costs.profile_fields import FitError, Range

_PIPED_WIDTH = 120
# History, new tokens; batch, context a sequence; both with one chunk.
_PREFILLS = ((0, 512), (0, 2048), (0, 8192), (8192, 512), (8192, 2048))
_DECODES = ((1, 2048), (16, 2048), (64, 2048), (256, 2048), (16, 16384))
_MIXED = ((16, 2048, 512, 0), (64, 2048, 512, 0), (64, 2048, 2048, 8192))
_TRANSFERS = (2048, 16384)


def console() -> Console:
    """Of the results; a fixed width when piped."""
    made = Console(markup=False, highlight=False)
    if made.is_terminal:
        return made
    return Console(markup=False, highlight=False, width=_PIPED_WIDTH)


def table(title: str, columns: Sequence[str]) -> Table:
    """An empty table; the first column is text, the others are numbers."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    made.add_column(columns[0], no_wrap=True)
    for name in columns[1:]:
        made.add_column(name, justify="right")
    return made


def percent(value: float) -> str:
    """Per cent with one decimal; NaN is unknown."""
    return "-" if math.isnan(value) else f"{value:.1f} %"


def error_row(made: Table, name: str, errors: Ape | Range) -> None:
    """One range of absolute percentage errors."""
    made.add_row(name, percent(errors.median_pct), percent(errors.p95_pct), f"{errors.count:,}")


def error_table(title: str, rows: Iterable[tuple[str, Ape | Range]]) -> Table:
    """Absolute percentage errors by range."""
    made = table(title, ("steps", "median", "p95", "count"))
    for name, errors in rows:
        error_row(made, name.replace("_", " "), errors)
    return made


def fit_errors(errors: FitErrors) -> Table:
    """Errors of a fit on held-out steps, overall and by kind."""
    kinds = [(str(kind.value), found) for kind, found in errors.by_kind.items()]
    return error_table(_held_out(errors.held_out), [("all", errors.overall), *kinds])


def fit_error(error: FitError) -> Table:
    """The same as a profile file keeps it."""
    return error_table(_held_out(error.held_out), [("all", error.overall), *error.by_kind.items()])


def _held_out(how: str) -> str:
    return f"error on what the fit has not seen ({how})"


def predictions(profile: Profile) -> Table:
    """What a profile says at standard points; * where it extrapolates."""
    cost = profile.cost_model()
    made = table("predictions (* outside what the profile was made from)", ("step", "ms"))

    def row(name: str, seconds: float, outside: bool) -> None:
        made.add_row(name, f"{1e3 * seconds:,.2f}{'*' if outside else ' '}")

    for history, new in _PREFILLS:
        chunk = min(new, cost.max_chunk_tokens)
        last = chunk * (history + new - chunk / 2)
        name = f"prefill of {new:,} tokens" + (f" on {history:,} cached" if history else "")
        row(name, cost.prefill_s(history, new), cost.extrapolates(0, 0, chunk, last))
    for batch, each in _DECODES:
        context = batch * each
        name = f"decode step, batch {batch}, {each:,} tokens each"
        row(name, cost.decode_step_s(batch, context), cost.extrapolates(batch, context, 0, 0.0))
    for batch, each, chunk, history in _MIXED:
        context, pairs = batch * each, chunk * (history + chunk / 2)
        name = f"mixed step, batch {batch}, {each:,} each, {chunk:,} prompt tokens on {history:,}"
        seconds = cost.mixed_step_s(batch, context, chunk, history)
        row(name, seconds, cost.extrapolates(batch, context, chunk, pairs))
    for tokens in _TRANSFERS:
        row(f"KV transfer of {tokens:,} tokens", cost.kv_transfer_s(tokens), False)
    return made
