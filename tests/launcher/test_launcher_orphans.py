# SPDX-License-Identifier: Apache-2.0
"""`kill -9` of the launcher, which cannot clean up: the kernel and the guard must."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_kit import free_port, mentioning, running, wait_for

pytestmark = pytest.mark.integration

_LAUNCHER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from launcher_kit import external_config, frontend, stubborn_family
from controller.runtime.launcher import Deployment

async def main():
    base, port = Path(sys.argv[2]), int(sys.argv[3])
    plan = lambda config, run_dir: (
        frontend(port, base / "journal"), stubborn_family("decode-0", base / "child")
    )
    async with Deployment.start(external_config(base, port), plan=plan) as deployment:
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    kit = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, kit, str(tmp_path), str(free_port())],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


@pytest.mark.parametrize("whole_group", [False, True])
def test_killed_launcher_leaves_no_orphan(
    launcher: subprocess.Popen[str], tmp_path: Path, whole_group: bool
) -> None:
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "up\n"
    child = tmp_path / "child"
    assert wait_for(lambda: child.exists() and bool(child.read_text()))
    table = json.loads((tmp_path / "runs" / "latest" / "processes.json").read_text())
    pids = [row["pid"] for row in table["processes"]] + [int(child.read_text())]
    assert running(pids) == pids

    # Stubborn on purpose: they ignore SIGTERM, and one is a grandchild of the launcher.
    kill = os.killpg if whole_group else os.kill
    kill(launcher.pid, signal.SIGKILL)

    assert wait_for(lambda: running(pids) == [], 5)
    assert wait_for(lambda: mentioning(str(tmp_path)) in ([], [launcher.pid]), 5)


def test_leash_alone_takes_the_processes_down(
    launcher: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "up\n"
    child = tmp_path / "child"
    assert wait_for(lambda: child.exists() and bool(child.read_text()))
    table = json.loads((tmp_path / "runs" / "latest" / "processes.json").read_text())
    pids = [row["pid"] for row in table["processes"]]
    try:
        os.kill(_guard_of(launcher.pid), signal.SIGKILL)
        os.kill(launcher.pid, signal.SIGKILL)
        assert wait_for(lambda: running(pids) == [], 5)
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)  # only the guard knew of that one


def _guard_of(launcher_pid: int) -> int:
    for pid in running(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        status = Path(f"/proc/{pid}/status").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_text()
        if f"\nPPid:\t{launcher_pid}\n" in status and "guard.py" in command:
            return pid
    raise AssertionError("no guard")
