# SPDX-License-Identifier: Apache-2.0
"""How much a counter has grown, across resets and through a window. Never less than nothing.

Owns: increments between two looks, the history that a window is read off. Does not own: which
series belong together (metric_window.py).

A counter that shows less than before was reset: it has counted from zero since, so what it shows
is what was added (as Prometheus' `increase`). A series that appears at a target which had been
looked at before began at zero: Dynamo makes many of them at the first request. One that is there at
the first look has a past that nobody saw, and counts from then on.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from controller.estimation.scrapes import Histogram

Counts = tuple[float, ...]
_JITTER = 0.25


def grown(before: Counts, now: Counts) -> Counts | None:
    """Increments of counts that move together; None when `now` is not countable.

    One that fell means that all were reset.
    """
    if any(not math.isfinite(each) or each < 0 for each in now):
        return None
    if any(new < old for old, new in zip(before, now, strict=True)):
        return now
    return tuple(new - old for old, new in zip(before, now, strict=True))


@dataclass(slots=True)
class Track:
    """One series: a counter, or a histogram as the vector (count, buckets, sum)."""

    bounds: tuple[float, ...] = ()
    last: Counts | None = None
    total: Counts = ()
    history: deque[tuple[float, Counts]] = field(default_factory=deque)
    changed_s: float = -math.inf
    """When its bounds last changed."""
    seen_s: float = -math.inf
    """When it last showed a countable value."""

    def look(
        self, at_s: float, bounds: tuple[float, ...], now: Counts, zero_s: float | None = None
    ) -> None:
        """Take one value in. Times do not fall.

        `zero_s`: its target was looked at then and did not have it, so it was zero.
        """
        if self.history and at_s <= self.history[-1][0]:
            return  # the same look again
        if bounds != self.bounds or len(now) != len(self.total):
            if self.last is not None:
                self.changed_s = at_s
            self.bounds, self.last, self.total = bounds, None, (0.0,) * len(now)
            self.history.clear()
        before = self.last
        if before is None and zero_s is not None and zero_s < at_s:
            before = (0.0,) * len(now)
        added = grown(now if before is None else before, now)
        if added is None:
            return
        if self.last is None and before is not None and zero_s is not None:
            self.history.append((zero_s, self.total))
        self.total = tuple(old + new for old, new in zip(self.total, added, strict=True))
        self.last, self.seen_s = now, at_s
        self.history.append((at_s, self.total))

    def forget(self, length_s: float) -> None:
        """Drop what no window of so many seconds before the last look reaches."""
        since_s = self.seen_s - length_s
        while len(self.history) > 1 and self.history[1][0] <= since_s:
            self.history.popleft()

    def increase(self, length_s: float) -> tuple[Counts, float] | None:
        """Growth over the last `length_s` seconds up to the last look, and over which time.

        It begins at a look: the last one that is at least `length_s` older, give or take a
        quarter (looks jitter), else the first. None with fewer than two looks.
        """
        if len(self.history) < 2:
            return None
        end_s, end = self.history[-1]
        since_s = end_s - (1.0 - _JITTER) * length_s
        start_s, start = self.history[0]
        for at_s, total in self.history:
            if at_s > since_s:
                break
            start_s, start = at_s, total
        return tuple(new - old for old, new in zip(start, end, strict=True)), end_s - start_s


def as_counts(histogram: Histogram) -> Counts:
    """(count, buckets...), and the sum behind them where there is one that can be counted."""
    known = math.isfinite(histogram.sum) and histogram.sum >= 0
    return (histogram.count, *histogram.counts, *((histogram.sum,) if known else ()))
