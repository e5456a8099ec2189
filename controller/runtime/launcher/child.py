# SPDX-License-Identifier: Apache-2.0
"""One launched process and its group: start, log file, signals, end.

Owns: the process handle. Does not own: when to start, restart or stop it (supervisor.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from controller.runtime.launcher.errors import LaunchError
from controller.runtime.launcher.plan import ProcessSpec

_LEASH = Path(__file__).with_name("leash.py")
_SWEEP_GRACE_S = 2.0
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAIL_BYTES = 16384


class Child:
    """A process in a session and group of its own, tied to the launcher's life."""

    def __init__(self, spec: ProcessSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.restarts = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the running (or last) process; also its process group. None before the start."""
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs, negative for a signal."""
        return self._process.returncode if self._process else None

    @property
    def alive(self) -> bool:
        """Started and not yet ended."""
        return self._process is not None and self._process.returncode is None

    async def spawn(self, environ: Mapping[str, str]) -> int:
        """Start it with `environ` plus its own variables; returns the pid.

        Raises LaunchError when this machine cannot (no such folder, out of processes); a program
        that does not exist shows as an early end, with a line in the log.
        """
        try:
            with self.log_path.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(_LEASH), str(os.getpid())),
                    *self.spec.argv,
                    env={**environ, **self.spec.env},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(f"{self.spec.name} cannot be started: {error}") from None
        return self._process.pid

    async def wait(self) -> None:
        """Until the process has ended."""
        if self._process is not None:
            await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Ask the process itself (SIGTERM): it knows best in which order its children stop."""
        if self.alive and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL to everything in its group."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def sweep(self) -> None:
        """After its end: give what is left of the group a moment, then kill it.

        The moment is for helpers that clean up after a parent (multiprocessing's tracker).
        """
        for _ in range(int(_SWEEP_GRACE_S / 0.1)):
            if self.pid is None or not _group_lives(self.pid):
                return
            await asyncio.sleep(0.1)
        self.kill_group()

    def describe_end(self) -> str:
        """`exit code 3` or `killed by SIGKILL`."""
        code = self.exit_code
        if code is None or code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"

    def tail(self, lines: int = 8) -> list[str]:
        """The last lines of its log, without colours and blank lines."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return []
        kept = [line.rstrip()[:400] for line in _ANSI.sub("", text).splitlines() if line.strip()]
        return kept[-lines:]


def _group_lives(group: int) -> bool:
    """Whether anything but zombies is in the group (a container's init may never reap those)."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not os.path.isdir("/proc/self"):
        return True
    return any(_is_live_member(pid, group) for pid in os.listdir("/proc") if pid.isdigit())


def _is_live_member(pid: str, group: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            # pid (command) state ppid pgrp ...; the command may contain anything
            state, _, pgrp = stream.read().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(pgrp) == group and state not in {"Z", "X"}
