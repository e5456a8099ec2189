# SPDX-License-Identifier: Apache-2.0
"""A redis-server of one's own, on a private loopback port, without persistence.

For experiments and tests: one to start, kill and start again at the same address.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from controller.errors import UserError
from controller.runtime.demo.compare import free_port

_START_S = 10.0


class Redis:
    """A server that is up until `kill`. UserError where it is not installed or does not start."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("redis-server") is None:
            raise UserError("redis-server is not installed (Debian package redis-server)")
        self._folder = folder
        self._port = free_port()
        self.process = self.start()

    @property
    def url(self) -> str:
        """For `router.redis.url`."""
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> subprocess.Popen[bytes]:
        """Start it again, at the same address."""
        options = ["--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self._port), *options], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port)),
            ):
                return self.process
            time.sleep(0.02)
        self.kill()
        raise UserError(f"redis-server did not start within {_START_S:g} s")

    def kill(self) -> None:
        """At once, as with kill -9."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[Redis]:
    """Up inside the block."""
    redis = Redis(folder)
    try:
        yield redis
    finally:
        redis.kill()
