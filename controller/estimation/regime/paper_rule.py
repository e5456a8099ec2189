# SPDX-License-Identifier: Apache-2.0
"""The price-of-anarchy paper's detector: EWMA of TTFT p99 against two thresholds.

arXiv 2606.17081 as reported (its body was not available): every 5 s, an exponentially weighted mean
of the TTFT p99 of finished requests is compared with theta1 and theta2, set as multiples of the
model's unloaded TTFT; three agreeing samples switch. The weight (0.3), the symmetric way down and
skipping periods without a finished request are assumptions. A second detector, and the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from controller.estimation.regime.hysteresis import Agreement, Held, held_after, verdict
from controller.estimation.regime.values import Regime, RegimeReason, Verdict


@dataclass(frozen=True, slots=True)
class PaperParams:
    """`theta1`, `theta2` are multiples of the unloaded TTFT."""

    weight: float = 0.3
    theta1: float = 10.0
    theta2: float = 100.0
    """Ten times theta1, as for its 340B model (1 s and 10 s)."""
    agreement: Agreement = field(default_factory=lambda: Agreement(rise=3, fall=3, idle=3))


@dataclass(frozen=True, slots=True)
class PaperState:
    """Carried from poll to poll."""

    ewma_s: float | None = None
    held: Held = field(default_factory=Held)


def step(
    state: PaperState,
    ttft_p99_s: float | None,
    unloaded_s: float,
    params: PaperParams,
    idle: bool = False,
) -> tuple[PaperState, Verdict]:
    """One poll. `ttft_p99_s` None: no new sample, the state stays as it is."""
    if idle:
        return _say(state, Regime.IDLE, RegimeReason.NO_TRAFFIC, params)
    if ttft_p99_s is not None:
        before = state.ewma_s
        weight = params.weight
        ewma = ttft_p99_s if before is None else weight * ttft_p99_s + (1 - weight) * before
        state = replace(state, ewma_s=ewma)
    if state.ewma_s is None:
        return _say(state, Regime.UNKNOWN, RegimeReason.TOO_FEW_SAMPLES, params)
    if ttft_p99_s is None:
        return state, verdict(state.held, params.agreement)
    if state.ewma_s >= params.theta2 * unloaded_s:
        return _say(state, Regime.SATURATED, RegimeReason.TTFT_ABOVE_SECOND, params)
    if state.ewma_s >= params.theta1 * unloaded_s:
        return _say(state, Regime.TRANSITION, RegimeReason.TTFT_BETWEEN, params)
    return _say(state, Regime.BELOW, RegimeReason.TTFT_BELOW_FIRST, params)


def _say(
    state: PaperState, regime: Regime, reason: RegimeReason, params: PaperParams
) -> tuple[PaperState, Verdict]:
    held = held_after(state.held, regime, reason, params.agreement)
    return replace(state, held=held), verdict(held, params.agreement)
