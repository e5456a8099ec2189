# SPDX-License-Identifier: Apache-2.0
"""Both detectors over a deployment's readings, pool by pool and as a whole.

Owns: which reading feeds which detector, the deployment's regime, changes. Does not own: the rules.

The whole is as bad as its worst pool. It is unknown when a pool that exists is unknown and no other
is in transition or worse, and idle only when every pool is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.estimation.deployment import DeploymentReadings, PoolReadings
from controller.estimation.readings import Known, value_of
from controller.estimation.regime import cusum, paper_rule
from controller.estimation.regime.cusum import CusumParams, CusumState
from controller.estimation.regime.paper_rule import PaperParams, PaperState
from controller.estimation.regime.values import (
    SEVERITY,
    Change,
    PoolSample,
    Regime,
    RegimeReason,
    Verdict,
)
from controller.estimation.roster import Role

_NO_POOL = Verdict(Regime.UNKNOWN, RegimeReason.NO_POOL, 0.0)


@dataclass(frozen=True, slots=True)
class RegimeParams:
    """Of both detectors."""

    cusum: CusumParams = field(default_factory=CusumParams)
    paper: PaperParams = field(default_factory=PaperParams)
    unloaded_ttft_s: float | None = None
    """For the paper's rule; None: the least mean TTFT seen."""


@dataclass(frozen=True, slots=True)
class RegimeState:
    """Carried from tick to tick."""

    pools: Mapping[Role, CusumState] = field(default_factory=dict)
    paper: PaperState = field(default_factory=PaperState)
    unloaded_ttft_s: float | None = None
    regimes: Mapping[Role | None, Regime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegimeReport:
    """What a tick says."""

    overall: Verdict
    pools: Mapping[Role, Verdict]
    paper: Verdict
    ewma_ttft_p99_s: float | None
    piled_s: Mapping[Role, float | None]
    thresholds_s: Mapping[Role, tuple[float, float]]
    changes: tuple[Change, ...]


def tick(
    state: RegimeState, readings: DeploymentReadings, params: RegimeParams
) -> tuple[RegimeState, RegimeReport]:
    """One control period: the next state and what is to be said."""
    pools = dict(state.pools)
    verdicts: dict[Role, Verdict] = {}
    for role, pool in readings.pools.items():
        if pool.workers == 0:
            pools.pop(role, None)
            verdicts[role] = _NO_POOL
            continue
        known = pools.get(role, CusumState())
        pools[role], verdicts[role] = cusum.step(
            known, sample_of(pool, readings.at_s), params.cusum
        )
    whole = overall(verdicts)
    unloaded_s = _unloaded(state, readings)
    paper, said = _paper(state, readings, params, unloaded_s)
    everybody: dict[Role | None, Verdict] = dict([(None, whole), *verdicts.items()])
    report = RegimeReport(
        overall=whole,
        pools=verdicts,
        paper=said,
        ewma_ttft_p99_s=paper.ewma_s,
        piled_s={
            role: cusum.piled_s(each, readings.pools[role].workers) for role, each in pools.items()
        },
        thresholds_s={r: cusum.thresholds_s(each, params.cusum) for r, each in pools.items()},
        changes=_changes(state, everybody, readings.at_s),
    )
    regimes = {role: each.regime for role, each in everybody.items()}
    return RegimeState(pools, paper, unloaded_s, regimes), report


def sample_of(pool: PoolReadings, at_s: float) -> PoolSample:
    """A pool's readings as a detector takes them: what has no value is None."""
    return PoolSample(
        at_s=at_s,
        arrived_per_s=value_of(pool.arrived_per_s),
        served_per_s=value_of(pool.served_per_s),
        backlog=value_of(pool.backlog),
        oldest_s=value_of(pool.oldest_s),
        workers=pool.workers,
        latency_s=value_of(pool.latency_s),
    )


def overall(verdicts: Mapping[Role, Verdict]) -> Verdict:
    """The whole deployment's."""
    there = [each for each in verdicts.values() if each.reason is not RegimeReason.NO_POOL]
    if not there:
        return _NO_POOL
    known = [each for each in there if each.regime is not Regime.UNKNOWN]
    worst = max(known, key=lambda each: SEVERITY[each.regime], default=None)
    if worst is not None and SEVERITY[worst.regime] >= SEVERITY[Regime.TRANSITION]:
        return worst
    unknown = next((each for each in there if each.regime is Regime.UNKNOWN), None)
    if unknown is not None or worst is None:
        return unknown or _NO_POOL
    return replace(worst, confidence=min(each.confidence for each in known))


def _paper(
    state: RegimeState,
    readings: DeploymentReadings,
    params: RegimeParams,
    learnt_s: float | None,
) -> tuple[PaperState, Verdict]:
    unloaded_s = params.unloaded_ttft_s or learnt_s
    p99_s = value_of(readings.ttft_p99_s)
    idle = readings.started_per_s == Known(0.0) and readings.active == Known(0.0)
    return paper_rule.step(
        state.paper, None if unloaded_s is None else p99_s, unloaded_s or 1.0, params.paper, idle
    )


def _unloaded(state: RegimeState, readings: DeploymentReadings) -> float | None:
    mean_s, known_s = value_of(readings.ttft_mean_s), state.unloaded_ttft_s
    if mean_s is None or mean_s <= 0:
        return known_s
    return mean_s if known_s is None else min(mean_s, known_s)


def _changes(
    state: RegimeState, verdicts: Mapping[Role | None, Verdict], at_s: float
) -> tuple[Change, ...]:
    found = []
    for role, said in verdicts.items():
        before = state.regimes.get(role, Regime.UNKNOWN)
        if before is not said.regime:
            found.append(Change(at_s, role, before, said.regime, said.reason))
    return tuple(found)
