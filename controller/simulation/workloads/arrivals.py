# SPDX-License-Identifier: Apache-2.0
"""Arrival times: renewal processes of a given rate and burstiness, stationary from the start.

Owns: the laws of the gaps. Does not own: what arrives.

CV is the standard deviation of the gaps over their mean: 1 is Poisson, 0 a metronome, above 1
bursty. The first gap is drawn from the equilibrium law (a uniform share of a length-biased gap):
an ordinary first gap would put (CV^2 - 1)/2 requests too many into the run, 84 at a CV of 13.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from controller.simulation.traces import TraceError
from controller.types import FloatArray


class GapLaw(str, Enum):
    """How gaps of a given CV are spread."""

    GAMMA = "gamma"
    WEIBULL = "weibull"
    """A longer tail than Gamma above a CV of 1."""


def arrival_times(
    rng: np.random.Generator,
    rate: float,
    duration_s: float,
    cv: float = 1.0,
    law: GapLaw = GapLaw.GAMMA,
) -> FloatArray:
    """Ascending times in [0, duration_s) at `rate` a second on average."""
    _check(rate, duration_s, cv)
    shape = _shape(cv, law)
    times = [rng.random(1) * _biased_gap(rng, shape, law) / rate]
    while times[-1][-1] < duration_s:
        missing = (duration_s - times[-1][-1]) * rate
        count = int(missing + 4 * max(1.0, cv) * math.sqrt(missing) + 16)
        times.append(times[-1][-1] + np.cumsum(_gaps(rng, shape, law, count)) / rate)
    drawn = np.concatenate(times)
    return drawn[drawn < duration_s]


def _check(rate: float, duration_s: float, cv: float) -> None:
    for name, value in (("rate", rate), ("duration", duration_s)):
        if not (math.isfinite(value) and value > 0):
            raise TraceError(f"{name} is {value}: give a number above 0")
    if not 0 <= cv <= 50:
        raise TraceError(f"CV of the gaps is {cv}: give 0 to 50")


def _shape(cv: float, law: GapLaw) -> float:
    """Shape parameter of the law; infinite for a metronome."""
    if cv < 0.02:
        return math.inf
    if law is GapLaw.GAMMA:
        return 1 / cv**2
    from scipy.optimize import brentq

    def excess(shape: float) -> float:
        return math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape) - math.log1p(cv**2)

    return float(brentq(excess, 0.05, 200))


def _gaps(rng: np.random.Generator, shape: float, law: GapLaw, count: int) -> FloatArray:
    """(count,) gaps of mean 1."""
    if math.isinf(shape):
        return np.ones(count)
    if law is GapLaw.GAMMA:
        return rng.gamma(shape, 1 / shape, count)
    return rng.weibull(shape, count) / math.gamma(1 + 1 / shape)


def _biased_gap(rng: np.random.Generator, shape: float, law: GapLaw) -> float:
    """The gap of mean-1 gaps that a random instant falls into: density proportional to its length.

    For Gamma(k) that is Gamma(k + 1); for Weibull(k) the k-th power is Gamma(1 + 1/k).
    """
    if math.isinf(shape):
        return 1.0
    if law is GapLaw.GAMMA:
        return rng.gamma(shape + 1) / shape
    return float(rng.gamma(1 + 1 / shape) ** (1 / shape)) / math.gamma(1 + 1 / shape)
