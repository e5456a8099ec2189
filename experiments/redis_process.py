# SPDX-License-Identifier: Apache-2.0
"""A redis-server of an experiment's own, on a private loopback port, without persistence."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controller.errors import UserError
from controller.runtime.demo.compare import free_port

_START_S = 10.0


@dataclass(frozen=True)
class Redis:
    """A server that is up."""

    url: str
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[Redis]:
    """Up inside the block. UserError where it is not installed or does not start."""
    if shutil.which("redis-server") is None:
        raise UserError("redis-server is not installed (Debian package redis-server)")
    port = free_port()
    options = ["--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), *options], stdout=subprocess.DEVNULL
    )
    try:
        _wait(port)
        yield Redis(f"redis://127.0.0.1:{port}/0", process)
    finally:
        process.kill()
        process.wait()


def _wait(port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise UserError(f"redis-server did not start within {_START_S:g} s")
