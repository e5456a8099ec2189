# SPDX-License-Identifier: Apache-2.0
"""One look at one target: which series it showed, under which names.

Owns: choosing among the names of a signal, putting histograms together, duplicates. Does not own:
time (metric_window.py), fetching.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.estimation.exposition import ExpositionReader, Labels, Sample
from controller.estimation.signals import SPECS, Kind, Part, Signal


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts by upper bound, as exported. Bounds ascend; the last may be infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float
    count: float


Value = float | Histogram


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a target answered at an instant. `failure` instead of series when it did not."""

    target: str
    at_s: float
    """When the values were taken, seconds on whatever clock the source keeps."""
    series: Mapping[Signal, Mapping[Labels, Value]] = field(default_factory=dict)
    names: Mapping[Signal, tuple[str, ...]] = field(default_factory=dict)
    """Families that were there for a signal; the first was read, the others not."""
    failure: str | None = None
    skipped: int = 0
    """Wanted lines that could not be read."""

    @property
    def ok(self) -> bool:
        """Whether the target answered."""
        return self.failure is None


def failed(target: str, at_s: float, why: str) -> Scrape:
    """A look that showed nothing."""
    return Scrape(target, at_s, failure=why)


def scrape_of_text(reader: ExpositionReader, text: str, target: str, at_s: float) -> Scrape:
    """The scrape that a metric text is. Never raises."""
    before = reader.skipped
    samples = list(reader.read(text))
    return scrape_of_samples(samples, target, at_s, reader.skipped - before)


def scrape_of_samples(
    samples: Iterable[Sample], target: str, at_s: float, skipped: int = 0
) -> Scrape:
    """Samples of one target at one instant; of a duplicate the first counts."""
    found: dict[Signal, dict[int, list[Sample]]] = {}
    last, into = None, []  # samples of a family come together
    for sample in samples:
        if sample.wanted is not last:
            last = sample.wanted
            into = found.setdefault(last.signal, {}).setdefault(last.rank, [])
        into.append(sample)
    series: dict[Signal, Mapping[Labels, Value]] = {}
    names: dict[Signal, tuple[str, ...]] = {}
    for signal, ranks in found.items():
        order = sorted(ranks)
        chosen = ranks[order[0]]
        names[signal] = tuple(ranks[rank][0].wanted.family for rank in order)
        if SPECS[signal].kind is Kind.HISTOGRAM:
            series[signal] = _histograms(chosen)
        else:
            series[signal] = _plain(chosen)
    return Scrape(target, at_s, series, names, skipped=skipped)


def _plain(samples: Iterable[Sample]) -> dict[Labels, Value]:
    values: dict[Labels, Value] = {}
    for sample in samples:
        values.setdefault(sample.labels, sample.value)
    return values


def _histograms(samples: Iterable[Sample]) -> dict[Labels, Value]:
    buckets: dict[Labels, dict[float, float]] = {}
    sums: dict[Labels, float] = {}
    counts: dict[Labels, float] = {}
    for sample in samples:
        if sample.wanted.part is Part.SUM:
            sums.setdefault(sample.labels, sample.value)
        elif sample.wanted.part is Part.COUNT:
            counts.setdefault(sample.labels, sample.value)
        else:
            bound, labels = _bound(sample.labels)
            if bound is not None:
                buckets.setdefault(labels, {}).setdefault(bound, sample.value)
    found: dict[Labels, Value] = {}
    for labels in (*counts, *(each for each in buckets if each not in counts)):
        found[labels] = _histogram(buckets.get(labels, {}), sums.get(labels), counts.get(labels))
    return found


def _histogram(
    buckets: Mapping[float, float], total: float | None, count: float | None
) -> Histogram:
    bounds = tuple(sorted(buckets))
    counts = tuple(buckets[bound] for bound in bounds)
    if count is None:
        count = counts[-1] if counts else math.nan
    return Histogram(bounds, counts, math.nan if total is None else total, count)


_KNOWN_BOUNDS: tuple[str, ...] = ("+Inf", "Inf", "inf", "+inf")


def _bound(labels: Labels) -> tuple[float | None, Labels]:
    """The `le` of a bucket's labels, and the others; None for one that is no number."""
    for at, (name, text) in enumerate(labels):
        if name == "le":
            rest = labels[:at] + labels[at + 1 :]
            if text in _KNOWN_BOUNDS:
                return math.inf, rest
            try:
                bound = float(text)
            except ValueError:
                return None, rest
            return (None if math.isnan(bound) else bound), rest
    return None, labels
