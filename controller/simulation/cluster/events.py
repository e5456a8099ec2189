# SPDX-License-Identifier: Apache-2.0
"""What happens to a cluster while it serves: failures and scale events at given times. Values.

Owns: the kinds, the value, its checks, the order in which events are applied. Does not own: what
they do (lifecycle.py, failures.py).

A worker is live, draining, starting or away. What does not apply to its state changes nothing: a
failure of a worker that is away, a join of one that is live. So a controller that repeats itself
does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class EventKind(str, Enum):
    """What happens. The order is that of the kernels' codes: append, never reorder."""

    FAIL = "fail"
    """Gone at once (a killed process), with its cache. What was on it: failures.py."""
    JOIN = "join"
    """A worker that is away starts; it serves after the `cold_start_s` of its engine, with an
    empty cache. One that drains is taken back at once, with all it has."""
    DRAIN = "drain"
    """Nothing new is sent there; what it has is finished, then it leaves. A prefill worker has
    handed over all it made by then."""
    SWITCH = "switch"
    """As DRAIN; then it starts anew on the other side (prefill or decode), through a cold start.
    One that is away starts there at once."""


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One event: workers are numbered as in ClusterSpec, prefill workers first."""

    at_s: float
    worker: int
    kind: EventKind

    def problem(self, workers: int) -> str | None:
        """What is wrong with it in a cluster of so many workers; None if nothing is."""
        if not 0 <= self.worker < workers:
            return f"names worker {self.worker} of {workers}"
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            return f"has time {self.at_s}; give seconds from 0"
        return None


def in_order(events: Iterable[ClusterEvent]) -> list[ClusterEvent]:
    """By time; what happens at one time stays in the order given."""
    return sorted(events, key=lambda event: event.at_s)


CODES = {kind: code for code, kind in enumerate(EventKind)}
