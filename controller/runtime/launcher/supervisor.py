# SPDX-License-Identifier: Apache-2.0
"""Keeps a set of processes: starts them, restarts those that may be, stops all of them.

Owns: the rules of life and death. During start-up any death is a failure. Afterwards a process
with a restart limit is started again with back-off; the frontend's death is a failure; any other
death is reported and the rest stays up, as it would without a launcher.
Does not own: what the processes are (plan.py), when they count as ready (readiness.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from controller.runtime.launcher.child import Child
from controller.runtime.launcher.errors import LaunchError
from controller.runtime.launcher.guarding import Guard
from controller.runtime.launcher.plan import ProcessSpec, Role
from controller.runtime.launcher.run_folder import RunFolder

_BACKOFF_S = 0.5
_KILL_WAIT_S = 5.0
Report = Callable[[str], None]


class State(str, Enum):
    """Of one process."""

    RUNNING = "running"
    RESTARTING = "restarting"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One line of the process table."""

    name: str
    role: Role
    state: State
    pid: int | None
    restarts: int
    exit_code: int | None
    log_path: Path


class Supervisor:
    """The processes of one deployment. Use from one event loop; always end with `stop`."""

    def __init__(
        self,
        folder: RunFolder,
        url: str,
        environ: Mapping[str, str],
        report: Report,
        after_death: Callable[[ProcessSpec], None] = lambda spec: None,
    ) -> None:
        self._folder, self._url, self._environ, self._report = folder, url, environ, report
        self._after_death = after_death
        self.children: dict[str, Child] = {}
        self._states: dict[str, State] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._settled = False
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._spawning = asyncio.Lock()
        self._guard = Guard()
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolves with the reason when the deployment cannot go on."""

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start some processes; they are watched from now on."""
        await self._guard.start()
        for spec in specs:
            child = Child(spec, self._folder.log_path(spec.name))
            self.children[spec.name] = child
            if not await self._spawn(child):
                return
            self._watchers[spec.name] = asyncio.create_task(self._watch(child))
        self._write_table()

    def settle(self) -> None:
        """Start-up is over: from now on a death is survived where the rules allow it."""
        self._settled = True

    def status(self) -> tuple[ProcessStatus, ...]:
        """The process table."""
        return tuple(
            ProcessStatus(
                name=name,
                role=child.spec.role,
                state=self._states.get(name, State.ENDED),
                pid=child.pid,
                restarts=child.restarts,
                exit_code=child.exit_code,
                log_path=child.log_path,
            )
            for name, child in self.children.items()
        )

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM to router and workers, then to the frontend; SIGKILL after `timeout_s` each.

        Workers deregister while the frontend lives. Nothing is left when this returns.
        """
        self._stopping.set()
        async with self._spawning:  # a restart under way ends before the signals go out
            latest_first = list(reversed(self.children.values()))
        workers = [child for child in latest_first if child.spec.role is not Role.FRONTEND]
        frontends = [child for child in latest_first if child.spec.role is Role.FRONTEND]
        for wave in (workers, frontends):
            await self._stop_wave(wave, timeout_s)
        await self._guard.stop()
        self._write_table()

    def hurry(self) -> None:
        """Make a running or later `stop` kill at once."""
        self._hurried.set()

    async def _spawn(self, child: Child) -> bool:
        async with self._spawning:
            if self._stopping.is_set():
                return False
            self._guard.watch(await child.spawn(self._environ))
            self._states[child.spec.name] = State.RUNNING
            return True

    async def _watch(self, child: Child) -> None:
        """Follow a process through its restarts to its last end."""
        while True:
            await child.wait()
            self._states[child.spec.name] = State.ENDED
            await child.sweep()
            if child.pid is not None:
                self._guard.forget(child.pid)
            if self._stopping.is_set():
                break
            await asyncio.to_thread(self._after_death, child.spec)
            may_restart = self._settled and child.restarts < child.spec.restart_limit
            if self._stopping.is_set() or not may_restart:
                break
            if not await self._restart(child):
                break
        if not self._stopping.is_set():
            self._bury(child)

    async def _restart(self, child: Child) -> bool:
        pause_s = _BACKOFF_S * 2.0**child.restarts
        child.restarts += 1
        self._states[child.spec.name] = State.RESTARTING
        self._write_table()
        self._report(
            f"{child.spec.name} died ({child.describe_end()}); restart {child.restarts} of "
            f"{child.spec.restart_limit} in {pause_s:g} s (log: {child.log_path})"
        )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)
        spawned = False
        try:
            spawned = await self._spawn(child)
        except LaunchError as error:
            self._report(str(error))
        if not spawned:
            self._states[child.spec.name] = State.ENDED
        self._write_table()
        return spawned

    def _bury(self, child: Child) -> None:
        name, end = child.spec.name, child.describe_end()
        self._write_table()
        if self._settled and child.spec.role is not Role.FRONTEND:
            self._report(f"{name} died ({end}); the rest stays up (log: {child.log_path})")
            return
        when = "" if self._settled else " during start-up"
        shown = "".join(f"\n    {line}" for line in child.tail()) or " (empty)"
        if not self.failure.done():
            self.failure.set_result(f"{name} ended{when} ({end}); end of {child.log_path}:{shown}")

    async def _stop_wave(self, wave: Sequence[Child], timeout_s: float) -> None:
        watched = [(child, self._watchers.get(child.spec.name)) for child in wave]
        tasks = {task for _, task in watched if task is not None}
        if not tasks:
            return
        for child in wave:
            child.signal(signal.SIGTERM)
        hurried = asyncio.create_task(self._hurried.wait())
        everyone = asyncio.ensure_future(asyncio.wait(tasks))
        await asyncio.wait(
            {everyone, hurried}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        for child, task in watched:
            if task is not None and not task.done():
                if child.alive and not self._hurried.is_set():
                    self._report(f"{child.spec.name} did not stop within {timeout_s:g} s: killed")
                child.kill_group()
        _, late = await asyncio.wait(tasks, timeout=_KILL_WAIT_S)
        if late:
            names = ", ".join(child.spec.name for child in wave if child.alive)
            self._report(f"could not be killed: {names}")

    def _write_table(self) -> None:
        self._folder.write_processes(
            self._url,
            [
                {
                    "name": entry.name,
                    "role": entry.role.value,
                    "state": entry.state.value,
                    "pid": entry.pid,
                    "restarts": entry.restarts,
                    "exit_code": entry.exit_code,
                    "argv": list(self.children[entry.name].spec.argv),
                    "log": str(entry.log_path),
                }
                for entry in self.status()
            ],
        )
