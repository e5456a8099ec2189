# SPDX-License-Identifier: Apache-2.0
"""Metric text -> the samples that are wanted, and nothing else. Tolerant by design.

Owns: one pass over a text in the Prometheus exposition format. Does not own: which names are wanted
(signals.py), what values mean (scrapes.py).

prometheus_client has a parser, but it gives up a whole scrape for one broken line and builds
objects for every sample, far over the budget of a tick (experiments/estimation_cost.py times both).
Here a line that cannot be read costs that line only, and is counted. The tests hold the two against
each other on Dynamo's own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.estimation.signals import Wanted

Labels = tuple[tuple[str, str], ...]
"""Sorted pairs."""

_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_MOST_CACHED = 200_000


class Sample(NamedTuple):
    """One wanted line."""

    wanted: Wanted
    labels: Labels
    value: float
    """May be NaN or infinite."""


@dataclass(slots=True)
class ExpositionReader:
    """Reads texts one after the other; what stands before a value is read once."""

    wanted: Mapping[str, Wanted]
    skipped: int = 0
    """Wanted lines that could not be read, so far."""
    _heads: dict[str, tuple[Wanted, Labels]] = field(default_factory=dict)
    """By name and labels as written, without the closing brace."""

    def read(self, text: str) -> Iterator[Sample]:
        """The wanted samples of one text, in its order; never raises."""
        heads, wanted, unwanted = self._heads, self.wanted, "#"
        for line in text.split("\n"):
            # Lines of a family stand together: most are passed over by this alone.
            if line.startswith(unwanted):
                continue
            head, _, tail = line.rpartition("} ")
            known = heads.get(head)
            if known is not None:
                value = _value(tail)
                if value is not None:
                    yield Sample(*known, value)
                    continue
            brace = line.find("{")
            name = line[:brace] if brace > 0 else line.partition(" ")[0]
            entry = wanted.get(name)
            if entry is None:
                if brace > 0:
                    unwanted = line[: brace + 1]
                continue
            sample = self._sample(entry, line, brace, len(name))
            if sample is None:
                self.skipped += 1
            else:
                yield sample

    def _sample(self, entry: Wanted, line: str, brace: int, after: int) -> Sample | None:
        """Read it in full, and remember what stands before the value."""
        labels: Labels | None = ()
        if brace > 0:
            after = line.rfind("}") + 1
            labels = _parse_labels(line[brace + 1 : after - 1]) if after > brace else None
        value = _value(line[after:])
        if labels is None or value is None:
            return None
        if brace > 0:
            if len(self._heads) >= _MOST_CACHED:
                self._heads.clear()
            self._heads[line[: after - 1]] = entry, labels
        return Sample(entry, labels, value)


def _parse_labels(text: str) -> Labels | None:
    """Sorted pairs, escapes resolved; None when the text is not a list of labels."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            if text[at:].strip():
                return None
            break
        found[match[1]] = _ESCAPE.sub(_unescaped, match[2]) if "\\" in match[2] else match[2]
        at = match.end()
    return tuple(sorted(found.items()))


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _value(text: str) -> float | None:
    """The value behind name and labels; a time stamp or exemplar may follow it."""
    words = text.split(None, 1)
    if not words:
        return None
    try:
        return float(words[0])
    except ValueError:
        return None
