# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, SIGTERM and SIGHUP as cancellation of the task that holds a deployment.

The first signal cancels, whatever the task is waiting for, also during start-up. A second one
cancels the stop, which then kills at once (deployment.py).
"""

from __future__ import annotations

import asyncio
import signal
import time
from types import TracebackType

# One keystroke can arrive twice (a wrapper such as `timeout` forwards it and the terminal sends
# it too): only a later signal means "now".
_SAME_SIGNAL_S = 0.3


class CancelOnSignals:
    """Context manager, for the main thread's event loop."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        """The first signal, None when there was none."""
        self._at_s = 0.0
        self._installed: list[signal.Signals] = []
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> CancelOnSignals:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started under nohup
            loop.add_signal_handler(number, self._on_signal, number)
            self._installed.append(number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in self._installed:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if self.received is not None and now_s - self._at_s < _SAME_SIGNAL_S:
            return
        self.received = self.received or number
        self._at_s = now_s
        if self._task is not None:
            self._task.cancel()
