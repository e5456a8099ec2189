# SPDX-License-Identifier: Apache-2.0
"""Reading a folder of operator measurements.

Owns: which files of the folder count. Does not own: what is inside (controller.costs.op_tables).
"""

from __future__ import annotations

from pathlib import Path

from controller.costs.op_tables import OpTables, parse_op_tables
from controller.errors import UserError
from controller.runtime.files import read_text


def read_op_tables(folder: Path) -> OpTables:
    """The tables of one GPU, model and tensor parallel degree: every CSV of `folder`.

    Raises UserError that names the folder, or file, row and column.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".csv")
    except OSError as error:
        raise UserError(f"operator tables {folder} cannot be read: {error.strerror}") from None
    return parse_op_tables(
        {path.stem: read_text(path, "operator table") for path in paths}, str(folder)
    )
