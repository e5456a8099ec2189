# SPDX-License-Identifier: Apache-2.0
"""Reading text files from disk, with one clear line when that fails."""

from __future__ import annotations

from pathlib import Path

from controller.errors import UserError


def read_text(path: Path, what: str) -> str:
    """The text of a file. Raises UserError that names it."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{what} {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{what} {path} cannot be read: {error}") from None
