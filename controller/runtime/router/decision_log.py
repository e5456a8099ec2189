# SPDX-License-Identifier: Apache-2.0
"""The decision log on disk: one JSON object a line, rotated, so that its size is bounded.

Owns: the files. Does not own: what a row says (controller.routing.decision_record). A full disk
must not cost a request: it is said once, and tried again when the router restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from controller.routing.decision_record import RouterRow, Row, as_line

logger = logging.getLogger(__name__)


class DecisionLog:
    """`path`, then `path.1` for what was before it, up to `files` files of `max_bytes` each."""

    def __init__(
        self, path: Path | None, router: RouterRow, max_bytes: int = 64 << 20, files: int = 4
    ) -> None:
        """`path` None or `max_bytes` 0: nothing is written."""
        self._path = path if max_bytes > 0 else None
        self._max_bytes = max_bytes
        self._files = files
        self._file: TextIO | None = None
        self._size = 0
        self.router = router
        """Who decides, at the head of each file."""
        self._open()

    def say(self, router: RouterRow) -> None:
        """From here on other parameters, or other replicas, are in force."""
        self.router = router
        self.write(router)

    def write(self, row: Row) -> None:
        """Append one row."""
        if self._file is None:
            return
        line = as_line(row) + "\n"
        try:
            if self._size + len(line) > self._max_bytes:
                self._rotate()
            self._put(line)
        except OSError as error:
            self._lost(error)

    def close(self) -> None:
        """Flush and close."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line)
            self._size += len(line)

    def _open(self) -> None:
        if self._path is None:
            return
        try:
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
            self._size = self._path.stat().st_size
            self._put(as_line(self.router) + "\n")
        except OSError as error:
            self._lost(error)

    def _rotate(self) -> None:
        assert self._path is not None
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = _numbered(self._path, number - 1)
            if older.exists():
                older.replace(_numbered(self._path, number))
        if self._files == 1:
            self._path.unlink()
        self._open()

    def _lost(self, error: OSError) -> None:
        logger.error("router.decision_log_lost error=%s", error)
        self._file = None


def log_lines(path: Path) -> Iterator[str]:
    """All lines of a log and its older files, oldest first; a missing file has none."""
    number = 0
    while _numbered(path, number + 1).exists():
        number += 1
    for each in range(number, -1, -1):
        file = _numbered(path, each)
        if file.exists():
            with file.open(encoding="utf-8", errors="replace") as lines:
                yield from lines


def _numbered(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_name(f"{path.name}.{number}")
