# SPDX-License-Identifier: Apache-2.0
"""A regime changes only when enough samples in a row agree. Pure: state in, state out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controller.estimation.regime.values import SEVERITY, Regime, RegimeReason, Verdict


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many samples in a row must say the same before it is believed."""

    rise: int = 2
    fall: int = 3
    idle: int = 3


@dataclass(frozen=True, slots=True)
class Held:
    """The regime that holds, and what the latest samples would change it to."""

    regime: Regime = Regime.UNKNOWN
    reason: RegimeReason = RegimeReason.TOO_FEW_SAMPLES
    proposed: Regime = Regime.UNKNOWN
    agreeing: int = 0


def held_after(state: Held, proposed: Regime, reason: RegimeReason, needs: Agreement) -> Held:
    """The state after one more sample that says `proposed`.

    From unknown the first known sample counts: there is nothing to hold on to. Rising to a worse
    regime counts samples that are at least that bad; one that is worse still keeps the count.
    """
    if proposed is state.regime:
        return replace(state, reason=reason, proposed=proposed, agreeing=0)
    if state.regime is Regime.UNKNOWN or proposed is Regime.UNKNOWN:
        return Held(proposed, reason, proposed, 0)
    same_way = _rises(state.regime, proposed) == _rises(state.regime, state.proposed)
    agreeing = state.agreeing + 1 if state.agreeing and same_way else 1
    if agreeing < _needed(state.regime, proposed, needs):
        return replace(state, proposed=proposed, agreeing=agreeing)
    return Held(proposed, reason, proposed, 0)


def verdict(state: Held, needs: Agreement) -> Verdict:
    """What is said of a state; confidence falls while samples disagree with it."""
    if state.regime is Regime.UNKNOWN:
        return Verdict(state.regime, state.reason, 0.0)
    needed = _needed(state.regime, state.proposed, needs) if state.agreeing else 1
    return Verdict(state.regime, state.reason, 1.0 - state.agreeing / (needed + 1))


def _rises(before: Regime, after: Regime) -> bool:
    return SEVERITY.get(after, 0) > SEVERITY.get(before, 0)


def _needed(before: Regime, after: Regime, needs: Agreement) -> int:
    if after is Regime.IDLE:
        return needs.idle
    return needs.rise if _rises(before, after) else needs.fall
