# SPDX-License-Identifier: Apache-2.0
"""Has the worker changed its speed? Recent passes against what the fit says of them.

Pure. Owns: the decision, when it began and by how much. Does not own: what is done about it.

A residual is log(measured / predicted), less the stratum's own median residual at the last fit:
what the fit gets wrong in steady state is no change of speed, and a stratum of which it has seen
fewer than three passes has no vote, since there the prediction is a guess. A change is a median
over the last `votes` residuals beyond the threshold: `least` (relative), or four standard errors
of that median when the stream is so noisy that they are more. It must also show, by at least half,
between passes that are alike before and since (live_contrast): traffic that moves to where the fit
is wrong is no change of speed. Without such passes nothing is decided; the next fit learns them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from controller.costs.live_contrast import Logs, contrast
from controller.costs.live_passes import Pass, Shape

_SIGMAS = 4.0
_MEDIAN_FACTOR = 1.2533  # standard error of a median over that of a mean, normal residuals
_MAD_FACTOR = 1.4826
_MEMORY = 4  # times `votes` passes are remembered, to find the beginning
_CHECKS = 8  # evaluations per `votes` passes
_UNSURE = 2  # passes by which the beginning of a change may be missed
_CONFIRMED = 0.5  # share of a change that passes alike must show
_FEWEST = 3  # passes of a stratum whose median one outlier cannot make
_MAX_BIAS = math.log(1.5)  # beyond it the stratum's passes are not to be trusted
_MAX_STEP = math.log(4.0)  # largest change of speed at once

LogRatio = Callable[[Pass], float]


@dataclass(frozen=True, slots=True)
class Drift:
    """Passes take `ratio` times as long as the fit says, since `since_s`."""

    since_s: float
    ratio: float
    unsure_s: tuple[float, float]
    """Between these times a pass may belong to either speed."""


class DriftDetector:
    """Watches passes of one kind (decode, or those with prompt tokens)."""

    def __init__(self, votes: int, least: float) -> None:
        self._votes = votes
        self._least = math.log1p(least)
        self._memory = _MEMORY * votes
        self._passes: deque[Pass] = deque(maxlen=self._memory)
        self._values: deque[float] = deque(maxlen=self._memory)
        self._log_ratio: LogRatio = lambda one: 0.0
        self._bias: Mapping[Shape, float] = {}
        self._known: Logs = {}
        self._threshold = math.inf
        self._unchecked = 0

    def calibrate(self, log_ratio: LogRatio, logs: Logs) -> None:
        """A new fit: its residual of a pass, and those of what it was made from, by stratum.

        What is remembered votes again under it.
        """
        medians = {key: median(value for _, value in pairs) for key, pairs in logs.items()}
        around = [value - medians[key] for key, pairs in logs.items() for _, value in pairs]
        sigma = _MAD_FACTOR * median(map(abs, around)) if around else 0.0
        error = _MEDIAN_FACTOR * sigma
        self._log_ratio, self._known = log_ratio, logs
        self._threshold = max(self._least, _SIGMAS * error / math.sqrt(self._votes))
        self._bias = {
            key: _unexplained(value, _SIGMAS / 2 * error / math.sqrt(len(logs[key])))
            for key, value in medians.items()
            if len(logs[key]) >= _FEWEST and abs(value) <= _MAX_BIAS
        }
        passes = tuple(self._passes)
        self.forget()
        for one in passes:
            self.remember(one)

    def add(self, one: Pass) -> Drift | None:
        """One more pass, in order of time; the change of speed that it completes, if any."""
        self.remember(one)
        self._unchecked += 1
        if len(self._values) < self._votes or self._unchecked < self._votes // _CHECKS:
            return None
        self._unchecked = 0
        return self._drift()

    def remember(self, one: Pass) -> None:
        """Let a pass vote without asking for the result."""
        bias = self._bias.get(one.stratum)
        if bias is not None:
            self._passes.append(one)
            self._values.append(self._log_ratio(one) - bias)

    def ratio_since(self, since_s: float) -> float | None:
        """How much longer passes since then take than those alike before; None if too few tell."""
        since = [(one, self._log_ratio(one)) for one in self._passes if one.at_s >= since_s]
        log_ratio = contrast(since, self._known, since_s)
        return None if log_ratio is None else math.exp(log_ratio)

    def settled(self, since_s: float) -> float | None:
        """The same over a full memory of passes, which is far surer; None before it is full."""
        return self.ratio_since(since_s) if len(self._values) == self._memory else None

    def forget(self) -> None:
        """What was seen so far is accounted for."""
        self._passes.clear()
        self._values.clear()

    def _drift(self) -> Drift | None:
        values = list(self._values)
        shift = median(values[-self._votes :])
        if abs(shift) <= self._threshold:
            return None
        first = onset(np.array(values), shift)
        at_s = [one.at_s for one in self._passes]
        ratio = self.ratio_since(at_s[first])
        if ratio is None or math.log(ratio) / shift < _CONFIRMED:
            return None
        log_ratio, voted = math.log(ratio), median(values[first:])
        if abs(voted - log_ratio) < self._threshold:
            log_ratio = voted  # of more passes, hence surer
        # What is larger comes in several steps; a fit that was wrong does less harm this way.
        log_ratio = min(_MAX_STEP, max(-_MAX_STEP, log_ratio))
        around = at_s[max(0, first - _UNSURE)], at_s[min(len(at_s) - 1, first + _UNSURE)]
        return Drift(at_s[first], math.exp(log_ratio), around)


def _unexplained(bias: float, noise: float) -> float:
    """The part of a stratum's median residual that is the fit's fault and not its few passes'."""
    return math.copysign(max(0.0, abs(bias) - noise), bias)


def onset(values: NDArray[np.float64], shift: float) -> int:
    """Index of the first changed value: the likeliest split into "as before" and "shifted"."""
    gain = np.sign(shift) * (values - shift / 2)
    clipped = np.clip(gain, -abs(shift), abs(shift))
    return int(np.argmax(np.cumsum(clipped[::-1])[::-1]))
