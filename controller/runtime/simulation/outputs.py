# SPDX-License-Identifier: Apache-2.0
"""The result folder of a simulation and its Chrome trace. Whole or not at all.

Owns: file names and formats. A new folder is filled under a temporary name and renamed, so no
reader meets half a result. The same run writes the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from controller.errors import UserError
from controller.runtime.files import replace_file

_FLOAT = "%.12g"


def check_folder(path: Path, *, force: bool) -> None:
    """Refuse before the run what would fail or destroy something after it. Raises UserError."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is a file; give a folder")
    if path.is_dir() and any(path.iterdir()) and not force:
        raise UserError(f"{path}: is not empty; give another folder or --force")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise UserError(f"{path}: its parent folder does not exist; make it first")
    if not os.access(path if path.is_dir() else parent, os.W_OK):
        raise UserError(f"{path}: cannot be written to")


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write into a temporary folder, then put its files in place. Raises UserError."""
    target = path.absolute()
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        fill(temporary)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o777 & ~mask)
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        if target.exists():
            _replace_files(temporary, target)
        else:
            temporary.rename(target)
    except OSError as error:
        raise UserError(f"{path}: cannot write ({error.strerror or error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_files(source: Path, target: Path) -> None:
    for file in sorted(source.rglob("*")):
        place = target / file.relative_to(source)
        if file.is_dir():
            place.mkdir(exist_ok=True)
        else:
            os.replace(file, place)


def write_table(folder: Path, name: str, columns: dict[str, Any], file_format: str) -> None:
    """`name`.parquet or `name`.csv."""
    import pandas as pd  # a third of the start of a run that writes nothing

    frame = pd.DataFrame(columns)
    path = folder / f"{name}.{file_format}"
    if file_format == "csv":
        frame.to_csv(path, index=False, float_format=_FLOAT)
    else:
        frame.to_parquet(path, index=False, engine="pyarrow")


def write_json(folder: Path, name: str, value: Any) -> None:
    """`name`.json; NaN is refused."""
    text = json.dumps(value, indent=2, allow_nan=False)
    (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def write_chrome_trace(path: Path, events: Iterable[dict[str, Any]]) -> None:
    """Events as one JSON object, written piece by piece. Raises UserError."""

    def write(target: str) -> None:
        with Path(target).open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[')
            for number, event in enumerate(events):
                file.write(",\n" if number else "\n")
                file.write(json.dumps(event, separators=(",", ":"), allow_nan=False))
            file.write("\n]}\n")

    replace_file(path, write)
