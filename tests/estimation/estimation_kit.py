# SPDX-License-Identifier: Apache-2.0
"""Metric texts and windows over them, by head."""

from __future__ import annotations

from controller.estimation.exposition import ExpositionReader
from controller.estimation.metric_window import MetricWindow
from controller.estimation.scrapes import Scrape, failed, scrape_of_text
from controller.estimation.signals import wanted_samples


def reader() -> ExpositionReader:
    return ExpositionReader(wanted_samples())


def look(text: str, at_s: float, target: str = "frontend") -> Scrape:
    return scrape_of_text(reader(), text, target, at_s)


def window(*looks: Scrape, length_s: float = 30.0, stale_after_s: float = 15.0) -> MetricWindow:
    made = MetricWindow(length_s, stale_after_s)
    for each in looks:
        made.add(each)
    return made


def texts(*texts: str, every_s: float = 5.0, target: str = "frontend") -> MetricWindow:
    """A window over texts that came one after the other; None: the target did not answer."""
    return window(
        *(
            failed(target, i * every_s, "refused") if t is None else look(t, i * every_s, target)
            for i, t in enumerate(texts)
        )
    )


def histogram(name: str, buckets: dict[str, float], total: float, labels: str = "") -> str:
    """One histogram's lines; the count is that of the +Inf bucket."""
    comma = f"{labels}," if labels else ""
    lines = [f'{name}_bucket{{{comma}le="{le}"}} {count}' for le, count in buckets.items()]
    count = list(buckets.values())[-1]
    own = f"{{{labels}}}" if labels else ""
    return "\n".join([*lines, f"{name}_sum{own} {total}", f"{name}_count{own} {count}"])
