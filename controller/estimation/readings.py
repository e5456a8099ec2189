# SPDX-License-Identifier: Apache-2.0
"""What a measurement says: a value, that it is unknown and why, or that it is too old.

Owns: the three closed types and the arithmetic that never turns an unknown into a zero. Does not
own: where values come from. A reading that needs two others is unknown when one of them is: nothing
is ever derived from an absent operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum


class Why(str, Enum):
    """Why a reading is unknown. Closed: append, never reorder or rename."""

    NOT_YET = "not_yet"
    """Fewer than two scrapes so far: a rate needs two."""
    NEVER_SEEN = "never_seen"
    """No scrape has ever had the series under any of its names."""
    GONE = "gone"
    """It was there and is not any more."""
    NOT_A_NUMBER = "not_a_number"
    """NaN, infinite, or a negative count."""
    SOURCE_FAILED = "source_failed"
    """Nothing could be read from where it comes."""
    NO_SAMPLES = "no_samples"
    """A mean or quantile over nothing."""
    BUCKETS_CHANGED = "buckets_changed"
    """The window holds histograms with different bounds."""
    NO_WORKERS = "no_workers"
    """Nobody who could have it is registered."""
    NOT_NEEDED = "not_needed"
    """The deployment has no such pool."""


@dataclass(frozen=True, slots=True)
class Known:
    """A finite value. `at_least`: a quantile in the last bucket, so the truth lies above."""

    value: float
    at_least: bool = False

    def __str__(self) -> str:
        return f">{self.value:.4g} (censored)" if self.at_least else f"{self.value:.4g}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """No value, and why."""

    why: Why

    def __str__(self) -> str:
        return f"unknown ({self.why.value})"


@dataclass(frozen=True, slots=True)
class Stale:
    """The last value is older than the source's own period allows."""

    age_s: float
    last: float

    def __str__(self) -> str:
        return f"stale ({self.age_s:.0f} s old)"


Reading = Known | Unknown | Stale


def reading(value: float, why: Why = Why.NOT_A_NUMBER) -> Reading:
    """Known if finite, else unknown."""
    return Known(value) if math.isfinite(value) else Unknown(why)


def value_of(of: Reading) -> float | None:
    """The value, None when it is unknown or stale."""
    return of.value if isinstance(of, Known) else None


def derived(function: Callable[..., float], *operands: Reading) -> Reading:
    """`function` of the values; the first operand that has none decides what comes out."""
    values = []
    for each in operands:
        if not isinstance(each, Known):
            return each
        values.append(each.value)
    try:
        return reading(function(*values), Why.NO_SAMPLES)
    except (ZeroDivisionError, OverflowError, ValueError):
        return Unknown(Why.NO_SAMPLES)


def ratio(numerator: Reading, denominator: Reading) -> Reading:
    """Their quotient; unknown over a confirmed zero."""
    return derived(lambda a, b: a / b, numerator, denominator)


def total(parts: Iterable[Reading], nothing: Why = Why.NO_WORKERS) -> Reading:
    """Their sum; one part without a value leaves the sum without one. Unknown for no part."""
    values = list(parts)
    if not values:
        return Unknown(nothing)
    return derived(lambda *each: math.fsum(each), *values)


def first_known(*choices: Reading) -> Reading:
    """The first with a value; else the first stale one, else the first of all."""
    for kind in (Known, Stale):
        for each in choices:
            if isinstance(each, kind):
                return each
    return choices[0]
