# SPDX-License-Identifier: Apache-2.0
"""The longest wait of the last while, by prompt-length class: who pays for an ordering.

Owns: classes of prompts, a maximum that forgets. Does not own: what waits now (the caller adds
it), clocks.
"""

from __future__ import annotations

CLASSES = ((512, "to_512"), (2048, "to_2048"), (8192, "to_8192"))
"""Upper bound in prompt tokens, and name, of each class but the last."""
LONGEST = "above_8192"
NAMES = (*(name for _, name in CLASSES), LONGEST)


def prompt_class(prompt_tokens: int) -> str:
    """The class of a prompt."""
    return next((name for most, name in CLASSES if prompt_tokens <= most), LONGEST)


class LongestWaits:
    """Largest waits of between one and two `window_s`, by class; seconds."""

    def __init__(self, window_s: float = 60.0) -> None:
        self._window_s = window_s
        self._epoch = 0
        self._now: dict[str, float] = {}
        self._before: dict[str, float] = {}

    def add(self, prompt_tokens: int, wait_s: float, now_s: float) -> None:
        """A wait that has ended."""
        self._turn(now_s)
        name = prompt_class(prompt_tokens)
        self._now[name] = max(self._now.get(name, 0.0), wait_s)

    def longest_s(self, name: str, now_s: float) -> float | None:
        """Of one class; None: nothing of it was sent lately."""
        self._turn(now_s)
        waits = [each[name] for each in (self._now, self._before) if name in each]
        return max(waits, default=None)

    def _turn(self, now_s: float) -> None:
        epoch = int(now_s // self._window_s)
        if epoch == self._epoch:
            return
        self._before = self._now if epoch == self._epoch + 1 else {}
        self._now, self._epoch = {}, epoch
