# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the processes of a deployment, and helpers that look at real ones."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from controller.config import DeploymentConfig
from controller.runtime.launcher import ProcessSpec, Role

MODEL = "equilibrium/tiny"

_FRONTEND = """
import http.server, json, signal, sys
port, journal = int(sys.argv[1]), sys.argv[2]
answers = {
    "/health": {"instances": []},
    "/v1/models": {"data": [{"id": name} for name in sys.argv[3:]]},
}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(answers[self.path]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
def stop(*_):
    open(journal, "a").write("frontend\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

_WORKER = """
import signal, sys, time
def stop(*_):
    open(sys.argv[1], "a").write(sys.argv[2] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
time.sleep(600)
"""

_STUBBORN_FAMILY = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def external_config(base: Path, port: int, **fields: Any) -> DeploymentConfig:
    """A deployment without processes of its own, for plans that tests inject."""
    return DeploymentConfig.model_validate(
        {
            "schema": "equilibrium.deployment/1",
            "run_dir": str(base / "runs"),
            "ready_timeout_s": 10,
            "frontend": {"http_port": port},
            "router": {"attachment": "none"},
            "prefill": {"engine": "external"},
            "decode": {"engine": "external"},
        }
        | fields
    )


def python(script: str, *argv: object) -> tuple[str, ...]:
    """The command line of an inline script."""
    return (sys.executable, "-c", script, *(str(value) for value in argv))


def frontend(port: int, journal: Path, *models: str) -> ProcessSpec:
    """Answers like a frontend that lists `models`; notes its SIGTERM in the journal."""
    argv = python(_FRONTEND, port, journal, *(models or (MODEL,)))
    return ProcessSpec(name="frontend", role=Role.FRONTEND, argv=argv)


def worker(name: str, journal: Path, role: Role = Role.DECODE, **fields: Any) -> ProcessSpec:
    """Sleeps until SIGTERM, which it notes in the journal."""
    return ProcessSpec(name=name, role=role, argv=python(_WORKER, journal, name), **fields)


def stubborn_family(name: str, child_pid_file: Path) -> ProcessSpec:
    """Ignores SIGTERM and has a child; the child's pid is in the file."""
    return ProcessSpec(name=name, role=Role.DECODE, argv=python(_STUBBORN_FAMILY, child_pid_file))


def running(pids: Iterable[int]) -> list[int]:
    """Those that exist and are not zombies."""
    return [pid for pid in pids if _state(pid) not in {None, "Z", "X"}]


def mentioning(text: str) -> list[int]:
    """Processes whose command line or environment mentions `text` (a run folder)."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        for part in ("cmdline", "environ"):
            try:
                raw = Path("/proc", entry, part).read_bytes()
            except OSError:
                continue
            if text.encode() in raw:
                found.append(int(entry))
                break
    return running(found)


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Poll from ordinary code; False when it did not come true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None
