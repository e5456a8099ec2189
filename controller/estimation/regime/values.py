# SPDX-License-Identifier: Apache-2.0
"""What detectors read and say. Closed enums: append, never reorder or rename."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from controller.estimation.roster import Role


class Regime(str, Enum):
    """How a pool, or the deployment, stands."""

    IDLE = "idle"
    """Confirmed: nothing arrives and nothing is in it."""
    BELOW = "below"
    TRANSITION = "transition"
    """Work piles up: newcomers wait for others."""
    SATURATED = "saturated"
    """The wait is many times what an unloaded request takes, and does not shrink."""
    UNKNOWN = "unknown"


SEVERITY = {Regime.IDLE: 0, Regime.BELOW: 1, Regime.TRANSITION: 2, Regime.SATURATED: 3}


class RegimeReason(str, Enum):
    """Why a regime was entered or holds."""

    NO_TRAFFIC = "no_traffic"
    WORK_KEEPS_UP = "work_keeps_up"
    WORK_PILES_UP = "work_piles_up"
    WAIT_TOO_LONG = "wait_too_long"
    WAIT_SHRINKS = "wait_shrinks"
    NOTHING_SERVED = "nothing_served"
    SIGNAL_UNKNOWN = "signal_unknown"
    TOO_FEW_SAMPLES = "too_few_samples"
    TTFT_BELOW_FIRST = "ttft_below_first_threshold"
    TTFT_BETWEEN = "ttft_between_thresholds"
    TTFT_ABOVE_SECOND = "ttft_above_second_threshold"
    NO_POOL = "no_pool"


@dataclass(frozen=True, slots=True)
class PoolSample:
    """One control period of one pool. None is unknown, 0 a confirmed zero."""

    at_s: float
    arrived_per_s: float | None
    served_per_s: float | None
    backlog: float | None
    """Requests that it has not served yet."""
    oldest_s: float | None
    """Age of the oldest of them, where somebody measures it."""
    workers: int | None = None
    latency_s: float | None = None
    """Mean time in the workers of those it finished lately: what is learnt of the unloaded pool."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a detector says after a sample."""

    regime: Regime
    reason: RegimeReason
    confidence: float
    """0 to 1: how many of the last samples agree, of how many are wanted."""


@dataclass(frozen=True, slots=True)
class Change:
    """A pool, or with None the deployment, has changed its regime."""

    at_s: float
    role: Role | None
    before: Regime
    after: Regime
    reason: RegimeReason
