# SPDX-License-Identifier: Apache-2.0
"""The default detector: does more work arrive than is served, and how long does it wait?

Owns: the rule for one pool. Does not own: which series are arrivals and service (deployment.py).

With A and D the requests that arrived and were served in a control period, and m what the pool can
serve a second, the sum

    S <- max(0, S + (A - D) - k*A),      in seconds: S/m

is the work that has piled up since the pool last kept pace (Page's CUSUM, with an allowance k for
noise). Beside it stands the age of the queue: the TTFT of finished requests says nothing about
those that still wait, and it is they who matter.

    transition   age >= a1 and S/m >= c*a1       saturated   age >= a2 and S/m >= c*a2

and S at least `least_piled` requests a worker. m is the mean rate of the last periods, or what the
workers would serve one after the other in their unloaded time if that is more: a pool that is
hardly asked serves slowly. Where nobody measures the age it is the backlog over m.

a1 and a2 are multiples of the unloaded time in the pool, which is learnt (the least mean time in
its workers that was seen, else the least wait), or given by the operator. Down again below
`release` times the threshold. Thresholds and allowance were chosen on training seeds
(experiments/check_regimes.py) and judged on others.

An unknown arrival or service makes the pool's regime unknown; S is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from controller.estimation.regime.hysteresis import Agreement, Held, held_after, verdict
from controller.estimation.regime.values import PoolSample, Regime, RegimeReason, Verdict


@dataclass(frozen=True, slots=True)
class CusumParams:
    """Seconds and multiples of the unloaded wait."""

    allowance: float = 0.02
    """Share of the arrivals that may be late without adding up (k)."""
    transition_at: float = 9.0
    saturated_at: float = 40.0
    piled_share: float = 0.5
    """Share of the age threshold that must have piled up (c)."""
    least_piled: float = 6.0
    """Requests a worker that must have piled up: by Little two are a long wait at low rates."""
    sure_at: float = 2.0
    """At so many times the threshold one sample is enough for a transition."""
    release: float = 0.5
    least_wait_s: float = 0.03
    """The unloaded wait is never taken to be less."""
    smoothing: float = 0.4
    """Weight of the newest period in the service rate."""
    min_samples: int = 2
    transition_s: float | None = None
    saturated_s: float | None = None
    """Given: these ages instead of multiples of the unloaded wait."""
    agreement: Agreement = field(default_factory=Agreement)


@dataclass(frozen=True, slots=True)
class CusumState:
    """What is carried from sample to sample."""

    held: Held = field(default_factory=Held)
    piled: float = 0.0
    """S, requests."""
    rate_per_s: float | None = None
    """m."""
    unloaded_s: float | None = None
    at_s: float | None = None
    backlog: float | None = None
    samples: int = 0


def piled_s(state: CusumState, workers: int | None) -> float | None:
    """S in seconds of the pool's work; None before anything was served."""
    rate = can_serve_per_s(state, workers)
    return state.piled / rate if rate else None


def can_serve_per_s(state: CusumState, workers: int | None) -> float | None:
    """m; None before anything was served."""
    if not state.rate_per_s:
        return None
    alone = (workers or 1) / state.unloaded_s if state.unloaded_s else 0.0
    return max(state.rate_per_s, alone)


def step(state: CusumState, sample: PoolSample, params: CusumParams) -> tuple[CusumState, Verdict]:
    """One control period."""
    over_s = 0.0 if state.at_s is None else max(0.0, sample.at_s - state.at_s)
    served = _served(state, sample, over_s)
    moved = replace(state, at_s=sample.at_s, backlog=sample.backlog, samples=state.samples + 1)
    if sample.arrived_per_s is None or served is None:
        return _say(moved, Regime.UNKNOWN, RegimeReason.SIGNAL_UNKNOWN, params)
    moved = _accumulated(moved, sample.arrived_per_s, served, over_s, params)
    if sample.arrived_per_s == 0 and served == 0 and not sample.backlog:
        if sample.backlog is None:
            return _say(moved, Regime.UNKNOWN, RegimeReason.SIGNAL_UNKNOWN, params)
        return _say(replace(moved, piled=0.0), Regime.IDLE, RegimeReason.NO_TRAFFIC, params)
    if moved.samples < params.min_samples:
        return _say(moved, Regime.UNKNOWN, RegimeReason.TOO_FEW_SAMPLES, params)
    age_s = _age_s(moved, sample)
    if age_s is None:
        return _say(moved, Regime.UNKNOWN, RegimeReason.SIGNAL_UNKNOWN, params)
    moved = _learnt(moved, sample.latency_s if sample.latency_s else age_s, served, params)
    age_s = _age_s(moved, sample) or 0.0
    proposed, reason = _proposed(moved, age_s, served, sample.workers or 1, params)
    first_s, _ = thresholds_s(moved, params)
    return _say(moved, proposed, reason, params, sure=age_s >= params.sure_at * first_s)


def _served(state: CusumState, sample: PoolSample, over_s: float) -> float | None:
    """Where service is not counted, it is what did not stay: arrivals less the backlog's growth."""
    if sample.served_per_s is not None or sample.arrived_per_s is None:
        return sample.served_per_s
    if sample.backlog is None or state.backlog is None or over_s <= 0:
        return None
    return max(0.0, sample.arrived_per_s - (sample.backlog - state.backlog) / over_s)


def _accumulated(
    state: CusumState, arrived: float, served: float, over_s: float, params: CusumParams
) -> CusumState:
    piled = state.piled + ((1.0 - params.allowance) * arrived - served) * over_s
    rate = state.rate_per_s
    if served > 0 and over_s > 0:
        weight = params.smoothing
        rate = served if rate is None else weight * served + (1.0 - weight) * rate
    return replace(state, piled=max(0.0, piled), rate_per_s=rate)


def _age_s(state: CusumState, sample: PoolSample) -> float | None:
    if sample.oldest_s is not None:
        return sample.oldest_s
    if sample.backlog == 0:
        return 0.0
    rate = can_serve_per_s(state, sample.workers)
    return None if sample.backlog is None or not rate else sample.backlog / rate


def _learnt(state: CusumState, time_s: float, served: float, params: CusumParams) -> CusumState:
    if served <= 0 or time_s <= 0:
        return state
    least_s = time_s if state.unloaded_s is None else min(state.unloaded_s, time_s)
    return replace(state, unloaded_s=max(params.least_wait_s, least_s))


def thresholds_s(state: CusumState, params: CusumParams) -> tuple[float, float]:
    """Ages at which transition and saturation begin."""
    unloaded_s = max(params.least_wait_s, state.unloaded_s or 0.0)
    first = params.transition_s or params.transition_at * unloaded_s
    return first, params.saturated_s or params.saturated_at * unloaded_s


def _proposed(
    state: CusumState, age_s: float, served: float, workers: int, params: CusumParams
) -> tuple[Regime, RegimeReason]:
    first_s, second_s = thresholds_s(state, params)
    waited_s = piled_s(state, workers)
    few = state.piled < params.least_piled * workers
    if served == 0 and age_s >= first_s and not few:
        return Regime.SATURATED, RegimeReason.NOTHING_SERVED
    piled = 0.0 if waited_s is None or few else waited_s
    now = state.held.regime
    if _over(age_s, piled, second_s, params, now is Regime.SATURATED):
        return Regime.SATURATED, RegimeReason.WAIT_TOO_LONG
    if _over(age_s, piled, first_s, params, now in (Regime.TRANSITION, Regime.SATURATED)):
        fell = now is Regime.SATURATED
        return Regime.TRANSITION, RegimeReason.WAIT_SHRINKS if fell else RegimeReason.WORK_PILES_UP
    return Regime.BELOW, RegimeReason.WORK_KEEPS_UP


def _over(age_s: float, piled: float, limit_s: float, params: CusumParams, inside: bool) -> bool:
    """Entered by age and pile together, left by age alone."""
    if inside:
        return age_s >= params.release * limit_s
    return age_s >= limit_s and piled >= params.piled_share * limit_s


def _say(
    state: CusumState,
    regime: Regime,
    reason: RegimeReason,
    params: CusumParams,
    sure: bool = False,
) -> tuple[CusumState, Verdict]:
    needs = params.agreement
    if sure and state.held.regime is Regime.BELOW:
        # One sample is never enough for saturation: the next one says it again.
        needs = replace(needs, rise=1)
        if regime is Regime.SATURATED:
            regime, reason = Regime.TRANSITION, RegimeReason.WORK_PILES_UP
    held = held_after(state.held, regime, reason, needs)
    return replace(state, held=held), verdict(held, params.agreement)
