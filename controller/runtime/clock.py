# SPDX-License-Identifier: Apache-2.0
"""The emulated clock: wall time divided by a scale, so that a busy machine distorts less.

Owns: reading the wall clock and sleeping. Everything else takes seconds as arguments.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds of emulated time; `scale` wall seconds pass per emulated second."""

    scale: float = 1.0

    def now(self) -> float:
        """Emulated monotonic seconds, comparable between processes of one machine."""
        return time.monotonic() / self.scale

    def wall_now(self) -> float:
        """Wall monotonic seconds, for what concerns processes and not the emulated work."""
        return time.monotonic()

    def wall(self, emulated_s: float) -> float:
        """The wall seconds that `emulated_s` take."""
        return emulated_s * self.scale

    async def sleep_until(self, at_s: float) -> float:
        """Sleep until the emulated instant; returns how late the wake-up was (seconds)."""
        delay = self.wall(at_s - self.now())
        # A zero sleep still lets other tasks run: a late loop must not starve its own server.
        await asyncio.sleep(max(delay, 0.0))
        return max(0.0, self.now() - at_s)
