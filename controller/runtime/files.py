# SPDX-License-Identifier: Apache-2.0
"""Reading and writing files, with one clear line when that fails.

Output is written beside its final name and renamed: a reader never sees half a file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
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


def replace_file(path: str | Path, write: Callable[[str], object]) -> None:
    """Let `write` make a file under a temporary name, then rename it. Raises UserError."""
    target = Path(path).absolute()
    try:
        handle, temporary = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix
        )
    except OSError as error:
        raise UserError(f"{path}: cannot write ({error.strerror or error})") from None
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


def write_text(path: str | Path, text: str) -> None:
    """Replace a file by a text. Raises UserError."""
    replace_file(path, lambda target: Path(target).write_text(text, encoding="utf-8"))
