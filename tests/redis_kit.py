# SPDX-License-Identifier: Apache-2.0
"""A redis-server of a test's own, on a private loopback port, without persistence."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time

import pytest


class RedisServer:
    """Up until `kill`; skips the test, with a reason, where redis-server is not installed."""

    def __init__(self, folder):
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed (Debian package redis-server)")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._folder = folder
        self.process = None
        self.start()

    @property
    def url(self):
        """For `router.redis.url`."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        """Start it, or start it again."""
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--dir", str(self._folder), *options],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)
        raise AssertionError("redis-server did not start")

    def kill(self):
        """At once, as with kill -9."""
        self.process.kill()
        self.process.wait()
