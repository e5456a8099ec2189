# SPDX-License-Identifier: Apache-2.0
"""Files of the load client: traces in, rows and summaries out. Errors are one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pandas as pd

from controller.runtime.files import check_output, replace_file
from controller.runtime.load.rows import RequestRow
from controller.runtime.load.summary import Summary, summary_to_dict
from controller.runtime.traces import read_trace_text
from controller.simulation.trace_formats import parse_trace
from controller.simulation.traces import Trace

ROW_SUFFIXES = (".csv", ".parquet")

# Data frame types that keep an empty cell apart from 0, by the annotation of the row's field.
_DTYPES: dict[str, Any] = {
    "str": "string",
    "str | None": "string",
    "Status": "string",
    "int": "int64",
    "int | None": "Int64",
    "float | None": "float64",
    "bool": "bool",
}


def read_trace(path: str | Path, trace_format: str | None = None) -> Trace:
    """Read and parse a trace file."""
    return parse_trace(read_trace_text(path), str(path), trace_format)


def rows_to_frame(rows: Sequence[RequestRow]) -> pd.DataFrame:
    """One line per intended request; the columns are those of RequestRow, also for no rows."""
    columns: dict[str, Any] = {}
    for field in fields(RequestRow):
        values = [getattr(row, field.name) for row in rows]
        plain = [value.value if isinstance(value, Enum) else value for value in values]
        columns[field.name] = pd.Series(plain, dtype=_DTYPES[str(field.type)])
    frame: pd.DataFrame = pd.DataFrame(columns)
    return frame


def write_rows(rows: Sequence[RequestRow], path: str | Path, *, force: bool = False) -> None:
    """Write CSV or Parquet, by the extension; an existing file is refused without `force`."""
    check_output(path, ROW_SUFFIXES, force=force)
    frame = rows_to_frame(rows)
    if Path(path).suffix.lower() == ".csv":
        replace_file(path, lambda target: frame.to_csv(target, index=False, float_format="%.6f"))
    else:
        replace_file(path, lambda target: frame.to_parquet(target, index=False, engine="pyarrow"))


def write_summary(summary: Summary, path: str | Path, *, force: bool = False) -> None:
    """Write the summary as JSON; unknown is null."""
    check_output(path, (".json",), force=force)
    text = json.dumps(summary_to_dict(summary), indent=2, allow_nan=False)
    replace_file(path, lambda target: Path(target).write_text(f"{text}\n", encoding="utf-8"))
