# SPDX-License-Identifier: Apache-2.0
"""Bindings of sessions, on their way to the other replicas and from them."""

from __future__ import annotations

from collections.abc import Callable


class Sessions:
    """Bindings of sessions, on their way to the other replicas."""

    def __init__(self, most: int = 1000) -> None:
        self.adopt: Callable[[str, int], None] = lambda session, worker_id: None
        """Called with a session and its decode worker: another replica has bound it."""
        self._new: dict[str, int] = {}
        self._most = most

    def note(self, session: str, worker_id: int) -> None:
        """Bound here."""
        if len(self._new) < self._most:
            self._new[session] = worker_id

    def take(self) -> tuple[tuple[str, int], ...]:
        """All that are new since the last time."""
        new, self._new = self._new, {}
        return tuple(new.items())
