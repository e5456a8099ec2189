# SPDX-License-Identifier: Apache-2.0
"""Files of the load client: traces in, rows and summaries out. Errors are one line.

Output is written beside its final name and renamed: a reader never sees half a file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pandas as pd

from controller.errors import UserError
from controller.runtime.load.rows import RequestRow
from controller.runtime.load.summary import Summary, summary_to_dict
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
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read the trace ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start}); give a Mooncake JSONL or Azure CSV file"
        ) from None
    return parse_trace(text, str(path), trace_format)


def check_output(path: str | Path, suffixes: Sequence[str], *, force: bool) -> None:
    """Refuse before the run what would fail or destroy something after it."""
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise UserError(f"{path}: cannot write this kind; end the name in {' or '.join(suffixes)}")
    if target.is_dir():
        raise UserError(f"{path}: is a folder; give a file name")
    if target.exists() and not force:
        raise UserError(f"{path}: exists already; give another name or --force")
    if not target.absolute().parent.is_dir():
        raise UserError(f"{path}: its folder does not exist; make it first")
    if not os.access(target.absolute().parent, os.W_OK):
        raise UserError(f"{path}: its folder is not writable")


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
        _replace(path, lambda target: frame.to_csv(target, index=False, float_format="%.6f"))
    else:
        _replace(path, lambda target: frame.to_parquet(target, index=False, engine="pyarrow"))


def write_summary(summary: Summary, path: str | Path, *, force: bool = False) -> None:
    """Write the summary as JSON; unknown is null."""
    check_output(path, (".json",), force=force)
    text = json.dumps(summary_to_dict(summary), indent=2, allow_nan=False)
    _replace(path, lambda target: Path(target).write_text(f"{text}\n", encoding="utf-8"))


def _replace(path: str | Path, write: Callable[[str], object]) -> None:
    target = Path(path).absolute()
    handle, temporary = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix
    )
    os.close(handle)
    try:
        write(temporary)
        # mkstemp makes private files; the result gets the mode of an ordinary one.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"{path}: cannot write ({error.strerror or error})") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
