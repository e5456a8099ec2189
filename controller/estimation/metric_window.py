# SPDX-License-Identifier: Apache-2.0
"""The last seconds of all targets' metrics: rates, means, quantiles, gauges as readings.

Owns: what a window says of a signal, and why it says nothing. Does not own: whose series counts
(callers pass a filter), what is made of it.

- A rate is the growth of all matching series over the window, by the clock of their own looks.
- A quantile is interpolated within its bucket; in the last one it is censored: "at least" the
  largest finite bound. A window that holds two sets of bounds has no quantile; sum over count needs
  no bounds and goes on.
- A target that has not answered for `stale_after_s` makes what it contributes stale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from controller.estimation.exposition import Labels
from controller.estimation.increase import Counts, Track, as_counts
from controller.estimation.readings import Known, Reading, Stale, Unknown, Why, reading
from controller.estimation.scrapes import Histogram, Scrape, Value
from controller.estimation.signals import SPECS, Kind, Signal

Keep = Callable[[str, Labels], bool]
"""(target, labels) -> whether the series counts."""


def every(target: str, labels: Labels) -> bool:
    """All series."""
    return True


class Point(NamedTuple):
    """The latest value of one gauge."""

    target: str
    labels: Labels
    value: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of the matching series over a window, added up."""

    count: float
    """Of a counter, or a histogram's observations."""
    per_s: float
    """The same per second: each series by the time between its own looks."""
    sum: float | None = None
    """Of the observations; None where a histogram has none that can be counted."""
    bounds: tuple[float, ...] = ()
    """Empty for counters, and for histograms that do not agree on theirs."""
    buckets: Counts = ()


@dataclass(slots=True)
class _Target:
    """What is kept of a target."""

    answered_s: float = -math.inf
    latest: Scrape | None = None
    failure: str | None = None
    seen: set[Signal] = field(default_factory=set)


class MetricWindow:
    """`add` scrapes as they come, ask about the last `length_s` seconds. Single-threaded."""

    def __init__(self, length_s: float, stale_after_s: float) -> None:
        self.length_s = length_s
        self.stale_after_s = stale_after_s
        self.now_s = -math.inf
        self._targets: dict[str, _Target] = {}
        self._tracks: dict[Signal, dict[tuple[str, Labels], Track]] = {}
        self._shown: dict[Signal, dict[str, Mapping[Labels, Value]]] = {}
        """Latest series by signal and target."""

    def add(self, scrape: Scrape) -> None:
        """Take one look in; of an older or repeated one nothing is taken."""
        target = self._targets.setdefault(scrape.target, _Target())
        self.now_s = max(self.now_s, scrape.at_s)
        target.failure = scrape.failure
        if not scrape.ok or scrape.at_s <= target.answered_s:
            return
        before_s = None
        if target.latest is not None:
            before_s = target.answered_s
            for signal in target.latest.series.keys() - scrape.series.keys():
                del self._shown[signal][scrape.target]
        for signal, series in scrape.series.items():
            target.seen.add(signal)
            self._shown.setdefault(signal, {})[scrape.target] = series
            if SPECS[signal].kind is not Kind.GAUGE:
                self._follow(signal, scrape, series, before_s)
        target.answered_s, target.latest = scrape.at_s, scrape

    def advance(self, now_s: float) -> None:
        """Time passes without a look: what is old becomes stale; what is gone is forgotten."""
        self.now_s = max(self.now_s, now_s)
        oldest_s = self.now_s - self.length_s - self.stale_after_s
        for tracks in self._tracks.values():
            for key in [key for key, track in tracks.items() if track.seen_s < oldest_s]:
                del tracks[key]
            for track in tracks.values():
                track.forget(self.length_s)

    def retain(self, targets: set[str]) -> None:
        """Forget every target but these: they were taken out of the deployment."""
        for gone in [name for name in self._targets if name not in targets]:
            del self._targets[gone]
            for shown in self._shown.values():
                shown.pop(gone, None)
            for tracks in self._tracks.values():
                for key in [key for key in tracks if key[0] == gone]:
                    del tracks[key]

    @property
    def targets(self) -> tuple[str, ...]:
        """All that were ever looked at."""
        return tuple(self._targets)

    def failures(self) -> dict[str, str]:
        """Targets whose latest look failed, and why."""
        return {n: t.failure for n, t in self._targets.items() if t.failure is not None}

    def stale_targets(self) -> tuple[str, ...]:
        """Targets that have not answered for too long."""
        limit_s = self.now_s - self.stale_after_s
        return tuple(n for n, t in self._targets.items() if t.answered_s < limit_s)

    def names(self) -> dict[Signal, tuple[str, ...]]:
        """Families by signal over all targets: the ones that are read, then the others."""
        found: dict[Signal, dict[str, None]] = {}
        for target in self._targets.values():
            if target.latest is not None:
                for signal, families in target.latest.names.items():
                    found.setdefault(signal, {}).update(dict.fromkeys(families))
        return {signal: tuple(names) for signal, names in found.items()}

    def has(self, signal: Signal, target: str) -> bool:
        """Whether the target's latest answer has the signal."""
        latest = self._targets[target].latest
        return latest is not None and signal in latest.series

    def points(self, signal: Signal, keep: Keep = every) -> Iterator[Point]:
        """Latest values of a gauge's or counter's series, stale ones too."""
        for name, series in self._shown.get(signal, {}).items():
            answered_s = self._targets[name].answered_s
            for labels, value in series.items():
                if not isinstance(value, Histogram) and keep(name, labels):
                    yield Point(name, labels, value, answered_s)

    def labels(self, signal: Signal) -> Iterator[Labels]:
        """Label sets of a signal's latest series."""
        for series in self._shown.get(signal, {}).values():
            yield from series

    def gauge(self, signal: Signal, keep: Keep = every) -> Reading:
        """Sum of a gauge's latest values."""
        points = list(self.points(signal, keep))
        if not points:
            return self._absent(signal)
        value = sum(p.value for p in points if math.isfinite(p.value))
        oldest_s = min(point.at_s for point in points)
        if self._too_old(oldest_s):
            return Stale(self.now_s - oldest_s, value)
        if any(not math.isfinite(point.value) for point in points):
            return Unknown(Why.NOT_A_NUMBER)
        return reading(value)

    def growth(
        self, signal: Signal, keep: Keep = every, over_s: float | None = None
    ) -> Growth | Unknown | Stale:
        """Growth of all matching series of a counter or histogram, added up.

        Over the last `over_s` seconds (None: the whole window).
        """
        length_s = over_s or self.length_s
        tracks = [
            (name, track)
            for (name, labels), track in self._tracks.get(signal, {}).items()
            if keep(name, labels)
        ]
        if not tracks:
            return self._absent(signal)
        grown = []
        for name, track in tracks:
            part = track.increase(length_s)
            if part is not None:
                grown.append((name, track, *part))
        if not grown:
            return Unknown(Why.NOT_YET)
        oldest_s = min(self._targets[name].answered_s for name, *_ in grown)
        found = _added_up([(track.bounds, part, over_s) for _, track, part, over_s in grown])
        if self._too_old(oldest_s):
            return Stale(self.now_s - oldest_s, found.count)
        if any(track.changed_s > self.now_s - length_s for _, track in tracks):
            return replace(found, bounds=(), buckets=())
        return found

    def increase(self, signal: Signal, keep: Keep = every) -> Reading:
        """How much a counter, or a histogram's count, has grown over the window."""
        grown = self.growth(signal, keep)
        return reading(grown.count) if isinstance(grown, Growth) else grown

    def increases(self, signal: Signal, keep: Keep = every) -> Iterator[tuple[str, Labels, float]]:
        """(target, labels, growth over the window) of each series that has two looks."""
        for (name, labels), track in self._tracks.get(signal, {}).items():
            part = track.increase(self.length_s) if keep(name, labels) else None
            if part is not None:
                yield name, labels, part[0][0]

    def rate(self, signal: Signal, keep: Keep = every, over_s: float | None = None) -> Reading:
        """The same per second. Never negative."""
        grown = self.growth(signal, keep, over_s)
        if not isinstance(grown, Growth):
            return grown
        return reading(grown.per_s)

    def mean(self, signal: Signal, keep: Keep = every) -> Reading:
        """Sum over count of a histogram's growth: needs no bounds."""
        grown = self.growth(signal, keep)
        if not isinstance(grown, Growth):
            return grown
        if grown.sum is None:
            return Unknown(Why.NOT_A_NUMBER)
        return reading(grown.sum / grown.count) if grown.count > 0 else Unknown(Why.NO_SAMPLES)

    def quantile(self, signal: Signal, share: float, keep: Keep = every) -> Reading:
        """A quantile of a histogram's growth, linear within its bucket."""
        grown = self.growth(signal, keep)
        if not isinstance(grown, Growth):
            return grown
        if not grown.bounds:
            return Unknown(Why.BUCKETS_CHANGED)
        return bucket_quantile(grown.bounds, grown.buckets, grown.count, share)

    def _follow(
        self,
        signal: Signal,
        scrape: Scrape,
        series: Mapping[Labels, Value],
        before_s: float | None,
    ) -> None:
        tracks = self._tracks.setdefault(signal, {})
        for labels, value in series.items():
            track = tracks.get((scrape.target, labels))
            if track is None:
                track = tracks[scrape.target, labels] = Track()
            if isinstance(value, Histogram):
                track.look(scrape.at_s, value.bounds, as_counts(value), before_s)
            else:
                track.look(scrape.at_s, (), (value,), before_s)

    def _absent(self, signal: Signal) -> Unknown | Stale:
        if self._targets and all(t.latest is None for t in self._targets.values()):
            return Unknown(Why.SOURCE_FAILED)
        if any(signal in target.seen for target in self._targets.values()):
            return Unknown(Why.GONE)
        return Unknown(Why.NEVER_SEEN)

    def _too_old(self, at_s: float) -> bool:
        return self.now_s - at_s > self.stale_after_s


def _added_up(parts: list[tuple[tuple[float, ...], Counts, float]]) -> Growth:
    """(bounds, growth, time) of each series -> all of them."""
    bounds = parts[0][0]
    alike = all(each == bounds for each, _, _ in parts)
    sums = [counts[-1] for each, counts, _ in parts if len(counts) == len(each) + 2]
    buckets: Counts = ()
    if alike and bounds:
        columns = zip(*(counts[1:][: len(bounds)] for _, counts, _ in parts), strict=True)
        buckets = tuple(sum(column) for column in columns)
    return Growth(
        count=sum(counts[0] for _, counts, _ in parts),
        per_s=sum(counts[0] / over_s for _, counts, over_s in parts),
        sum=sum(sums) if len(sums) == len(parts) else None,
        bounds=bounds if alike else (),
        buckets=buckets,
    )


def bucket_quantile(
    bounds: tuple[float, ...], cumulative: tuple[float, ...], count: float, share: float
) -> Reading:
    """The `share` quantile of a histogram: linear in its bucket, from 0 in the first.

    Censored where it lies beyond the last finite bound. Counts that do not rise are made to.
    """
    finite = [(b, c) for b, c in zip(bounds, cumulative, strict=True) if math.isfinite(b)]
    count = max([count, *cumulative])
    if not 0 < count < math.inf:
        return Unknown(Why.NO_SAMPLES)
    wanted, below, lower = share * count, 0.0, 0.0
    for bound, counted in finite:
        reached = max(counted, below)
        if reached >= wanted and reached > below:
            lower = min(lower, bound)
            return reading(lower + (bound - lower) * (wanted - below) / (reached - below))
        below, lower = reached, bound
    return Known(finite[-1][0], at_least=True) if finite else Unknown(Why.NO_SAMPLES)
