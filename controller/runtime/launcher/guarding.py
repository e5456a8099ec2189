# SPDX-License-Identifier: Apache-2.0
"""The launcher's end of guard.py: which process groups die when the launcher vanishes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

_SCRIPT = Path(__file__).with_name("guard.py")


class Guard:
    """A helper process that holds the other end of a pipe; see guard.py."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None

    async def start(self) -> None:
        """Start it, once."""
        if self._process is not None:
            return
        read_end, self._pipe = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_SCRIPT)),
                stdin=read_end,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a kill of the launcher's whole group spares it
            )
        finally:
            os.close(read_end)

    def watch(self, group: int) -> None:
        """From now on this group dies with the launcher."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group is gone; its number may be given to others."""
        self._tell(f"-{group}\n")

    async def stop(self) -> None:
        """Close the pipe: it kills what it still watches (nothing, after an orderly stop)."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._process is not None:
            await self._process.wait()

    def _tell(self, line: str) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # somebody killed it; the leashes still hold
                os.write(self._pipe, line.encode("ascii"))
