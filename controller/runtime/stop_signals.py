# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM to a process of ours, for as long as a block runs.

Not loop.add_signal_handler: asyncio and uvloop learn of those through the pipe by which other
threads wake the loop, and while a few hundred forward passes or chunks fill it, the signal is lost.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_stop_signals(stop: Callable[[], object]) -> Iterator[None]:
    """`stop` is called on the event loop at every such signal inside the block."""
    loop = asyncio.get_running_loop()

    def asked(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
