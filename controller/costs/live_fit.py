# SPDX-License-Identifier: Apache-2.0
"""Step tables from the stream of passes that a worker reports while it serves.

Pure: passes and the time come in as arguments. Owns: when to fit again, what a change of speed
does to what was learned before, how good the fit in force is. Does not own: the fit itself (fit),
receiving passes (controller.runtime.profiling).

    live = LiveFit(LiveOptions(), FitOptions())
    for one in passes:
        live.observe(one)
        if live.due(one.at_s):
            live.refit(one.at_s)

When the worker changes its speed, the passes from before the change are not thrown away: their
times are multiplied by the ratio of the change, so that the whole seen range is right again at
the next fit, seconds later, also where the traffic has not come back to yet. A change that is not
one ratio everywhere is corrected as newer passes replace those. A drift slower than the detector
sees is followed by forgetting (live_reservoir).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from controller.costs.errors_report import Ape, FitErrors
from controller.costs.fit import FitOptions, StepFit, fit_step_tables
from controller.costs.live_drift import Drift, DriftDetector
from controller.costs.live_passes import ColdStart, LeftOut, Pass, Shape
from controller.costs.live_reservoir import Reservoir
from controller.costs.measurements import StepMeasurements
from controller.costs.model import TableCost

_FEW_SINGLE = 50
"""Below so many passes with one prompt, those with several are used whatever they leave open."""
_MAX_AMBIGUITY = 0.04
"""Share of its time that a pass with several prompts may leave open (how they were split)."""
_WORKER_PASSES = 100
"""Newest passes by which a worker is compared with the fit of its pool."""

_DRIFTS = 100
_NOTHING_S = 1e-9

Fit = Callable[[StepMeasurements, FitOptions], StepFit]


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How the stream is sampled. Seconds on the caller's clock."""

    warm_up_passes: int = 20
    """First passes of each worker, since its start, that do not count."""
    least_passes: int = 100
    """Passes that must count before the first fit."""
    refit_every_s: float = 10.0
    half_life_s: float = 60.0
    """Time in which half of what is known of a busy shape is replaced."""
    passes_per_stratum: int = 24
    max_passes: int = 4000
    drift_votes: int = 24
    """Passes whose median decides whether the speed has changed."""
    least_drift: float = 0.08
    """Relative change of speed below which forgetting alone follows."""
    error_passes: int = 500
    """Passes over which the current error is taken."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LiveState:
    """What an operator wants to know of a live fit."""

    fitted_at_s: float | None
    """When the fit in force was made; None before the first."""
    held_out: FitErrors | None
    """Errors of that fit on held-out passes."""
    current: Ape
    """Errors of the fit in force on the newest passes since the last change of speed, each pass
    judged before the fit learned it."""
    passes: int
    """Passes that counted so far."""
    decode_passes: int
    """Those without prompt tokens."""
    prefill_passes: int
    """Those with prompt tokens, perhaps beside decodes."""
    kept: int
    """Passes that are kept for the next fit."""
    left_out: dict[LeftOut, int]
    drifts: tuple[tuple[float, float], ...]
    """The newest changes of speed: when, and the ratio to before."""
    worker_ratios: dict[str, float]
    """Of the workers heard of lately: median of measured over predicted of its newest passes."""


class LiveFit:
    """A fit that follows one worker, or one pool of equal workers."""

    def __init__(
        self, options: LiveOptions, fit_options: FitOptions, fit: Fit = fit_step_tables
    ) -> None:
        self._options = options
        self._fit_options = fit_options
        self._fit = fit
        self._cold = ColdStart(options.warm_up_passes)
        self._left_out: Counter[LeftOut] = Counter()
        self._reservoir = Reservoir(
            options.passes_per_stratum, options.max_passes, options.half_life_s, options.seed
        )
        self._detectors = {
            kind: DriftDetector(options.drift_votes, options.least_drift) for kind in (False, True)
        }
        self._errors: deque[float] = deque(maxlen=options.error_passes)
        self._drifts: deque[tuple[float, float]] = deque(maxlen=_DRIFTS)
        self._cost: TableCost | None = None
        self._in_force: StepFit | None = None
        self._fitted_at_s: float | None = None
        self._passes: Counter[bool] = Counter()
        self._newest: dict[str, deque[Pass]] = {}
        self._fresh = 0
        self._urgent = False
        # Beginning of the last change of speed, by kind, while its ratio is a first estimate.
        self._unsettled: dict[bool, float] = {}

    @property
    def in_force(self) -> StepFit | None:
        """The newest fit."""
        return self._in_force

    def observe(self, one: Pass) -> LeftOut | None:
        """Take in a pass, in order of time; why it does not count, or None."""
        reason = self._cold.left_out(one)
        if reason is not None:
            self._left_out[reason] += 1
            return reason
        self._passes[one.is_prefill] += 1
        self._fresh += 1
        if self._cost is not None:
            self._errors.append(math.expm1(-self._log_ratio(one)))
        self._newest.setdefault(one.worker, deque(maxlen=_WORKER_PASSES)).append(one)
        self._reservoir.offer(one)
        self._watch(one)
        return None

    def due(self, now_s: float, last: bool = False) -> bool:
        """Whether to `refit`: in time, when what is known has doubled, or after a change of speed.

        With `last` also before its time, if there is anything new.
        """
        if sum(self._passes.values()) < self._options.least_passes:
            return False
        if self._fitted_at_s is None or self._urgent:
            return True
        waited = last or now_s - self._fitted_at_s >= self._options.refit_every_s
        return self._fresh > 0 and (waited or 2 * self._fresh >= sum(self._passes.values()))

    def kept(self) -> tuple[Pass, ...]:
        """The passes that are kept, those from before a change of speed at the speed after it."""
        return tuple(self._reservoir)

    def measurements(self) -> StepMeasurements:
        """What the next fit is made of."""
        kept = self.kept()
        single = sum(1 for one in kept if one.prefills == 1)
        if single < _FEW_SINGLE:
            return as_measurements(kept)
        return as_measurements([one for one in kept if self._unambiguous(one)])

    def refit(self, now_s: float) -> StepFit:
        """Fit again and put it in force. Raises FitError while there are too few passes."""
        fitted = self._fit(self.measurements(), self._fit_options)
        if self._in_force is None:
            # Passes with several prompts can be judged only now.
            self._cost = TableCost(fitted.tables)
            fitted = self._fit(self.measurements(), self._fit_options)
        self._in_force, self._cost = fitted, TableCost(fitted.tables)
        self._fitted_at_s, self._fresh, self._urgent = now_s, 0, False
        self._calibrate()
        self._forget_silent(now_s)
        return fitted

    def state(self) -> LiveState:
        """How things stand."""
        errors = 100 * np.abs(np.array(self._errors))
        middle, p95 = np.percentile(errors, [50, 95]) if len(errors) else (math.nan, math.nan)
        return LiveState(
            fitted_at_s=self._fitted_at_s,
            held_out=None if self._in_force is None else self._in_force.errors,
            current=Ape(float(middle), float(p95), len(errors)),
            passes=sum(self._passes.values()),
            decode_passes=self._passes[False],
            prefill_passes=self._passes[True],
            kept=len(self._reservoir),
            left_out=dict(self._left_out),
            drifts=tuple(self._drifts),
            worker_ratios=self._worker_ratios(),
        )

    def _watch(self, one: Pass) -> None:
        kind = one.is_prefill
        if self._urgent:
            # The fit in force is known to be wrong, however long the caller takes to refit.
            self._detectors[kind].remember(one)
            return
        drift = self._detectors[kind].add(one)
        if drift is not None:
            self._follow(drift, kind)
        elif kind in self._unsettled:
            self._settle(kind)

    def _worker_ratios(self) -> dict[str, float]:
        if self._cost is None:
            return {}
        return {
            name: math.exp(median(self._log_ratio(one) for one in passes))
            for name, passes in self._newest.items()
        }

    def _forget_silent(self, now_s: float) -> None:
        """Workers that have gone, or have had nothing to do for a half-life."""
        since_s = now_s - self._options.half_life_s
        self._newest = {k: v for k, v in self._newest.items() if v[-1].at_s >= since_s}

    def _log_ratio(self, one: Pass) -> float:
        assert self._cost is not None
        predicted_s = self._cost.step_s(one.batch, one.context, one.chunk, one.pairs)
        return math.log(one.wall_s / max(predicted_s, _NOTHING_S))

    def _unambiguous(self, one: Pass) -> bool:
        """Whether it hardly matters how the tokens were split between several prompts."""
        if one.prefills < 2:
            return True
        if self._cost is None:
            return False
        low, high = (
            self._cost.step_s(one.batch, one.context, one.chunk, pairs)
            for pairs in one.pairs_bounds
        )
        return high - low <= _MAX_AMBIGUITY * one.wall_s

    def _calibrate(self) -> None:
        logs: dict[bool, dict[Shape, list[tuple[Pass, float]]]] = {False: {}, True: {}}
        for stratum, kept in self._reservoir.strata().items():
            logs[kept[0].is_prefill][stratum] = [(one, self._log_ratio(one)) for one in kept]
        for kind, detector in self._detectors.items():
            detector.calibrate(self._log_ratio, logs[kind])

    def _follow(self, drift: Drift, kind: bool) -> None:
        """Bring what was learned before a change of speed to the speed after it."""
        ratios = {kind: drift.ratio}
        ratios[not kind] = self._detectors[not kind].ratio_since(drift.since_s) or drift.ratio
        first_s, last_s = drift.unsure_s
        self._reservoir.rescale(lambda one: None if first_s <= one.at_s <= last_s else 1.0)
        for each, detector in self._detectors.items():
            self._rescale(each, drift.since_s, ratios[each])
            self._unsettled[each] = drift.since_s
            detector.forget()
        self._drifts.append((drift.since_s, drift.ratio))
        self._errors.clear()

    def _settle(self, kind: bool) -> None:
        """The ratio came from a few passes; correct it once there are many."""
        ratio = self._detectors[kind].settled(self._unsettled[kind])
        if ratio is not None:
            self._rescale(kind, self._unsettled.pop(kind), ratio)

    def _rescale(self, kind: bool, before_s: float, ratio: float) -> None:
        self._reservoir.rescale(
            lambda one: ratio if one.is_prefill is kind and one.at_s < before_s else 1.0
        )
        self._urgent = True


def as_measurements(passes: Sequence[Pass]) -> StepMeasurements:
    """Passes as the arrays that a fit takes."""
    columns = [(one.batch, one.context, one.chunk, one.pairs, one.wall_s) for one in passes]
    batch, context, chunk, pairs, wall_s = np.array(columns, dtype=np.float64).reshape(-1, 5).T
    return StepMeasurements(
        batch=np.ascontiguousarray(batch),
        context=np.ascontiguousarray(context),
        chunk=np.ascontiguousarray(chunk),
        pairs=np.ascontiguousarray(pairs),
        step_s=np.ascontiguousarray(wall_s),
    )
