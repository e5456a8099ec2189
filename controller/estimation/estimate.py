# SPDX-License-Identifier: Apache-2.0
"""The estimator as a whole: scrapes and discovery in, one `Estimate` a control period out. Pure.

Owns: the order of things in a tick, what is counted as unknown and stale. Does not own: fetching
(controller.runtime.sources), the price of anarchy of logs (poa), printing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.estimation import events
from controller.estimation.deployment import (
    DeploymentReadings,
    DeploymentView,
    orphans,
)
from controller.estimation.events import Event, EventInput, EventParams, EventState, Prefixes
from controller.estimation.metric_window import Growth, MetricWindow
from controller.estimation.readings import Known, Stale, Unknown, value_of
from controller.estimation.regime.tracker import RegimeParams, RegimeReport, RegimeState, tick
from controller.estimation.roster import Role, Roster, Worker, merged
from controller.estimation.scrapes import Scrape
from controller.estimation.signals import Signal
from controller.estimation.worker_ids import LabelledRoles, WorkerIds


@dataclass(frozen=True, slots=True)
class EstimatorParams:
    """Seconds."""

    period_s: float = 5.0
    window_s: float = 30.0
    stale_periods: float = 3.0
    """Looks that a target may miss before its values are stale."""
    model: str | None = None
    regime: RegimeParams = field(default_factory=RegimeParams)
    events: EventParams = field(default_factory=EventParams)


@dataclass(frozen=True, slots=True)
class Discovered:
    """What discovery showed. `complete`: it was read, so who is not in it is gone."""

    workers: tuple[Worker, ...] = ()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """Everything that is known after a tick."""

    at_s: float
    readings: DeploymentReadings
    regime: RegimeReport
    events: tuple[Event, ...]
    roster: Roster
    names: Mapping[Signal, tuple[str, ...]]
    """Families by signal: the first was read, the others were there too."""
    frontends: tuple[str, ...]
    failures: Mapping[str, str]
    stale_targets: tuple[str, ...]
    orphans: tuple[int, ...]
    skipped_lines: int
    no_traffic_yet: bool
    """A frontend answers and has never had a request."""

    @property
    def unknown(self) -> dict[str, str]:
        """Readings without a value that the deployment could have, and why."""
        return {
            name: each.why.value
            for name, each in self.readings.named().items()
            if isinstance(each, Unknown)
        }

    @property
    def stale(self) -> dict[str, float]:
        """Readings that are too old, and how old."""
        return {
            name: each.age_s
            for name, each in self.readings.named().items()
            if isinstance(each, Stale)
        }


class Estimator:
    """One model's deployment over time. Single-threaded; `take` then `tick`, once a period."""

    def __init__(self, params: EstimatorParams) -> None:
        self.params = params
        self.window = MetricWindow(params.window_s, params.stale_periods * params.period_s)
        self._regime = RegimeState()
        self._events = EventState()
        self._skipped = 0
        self._ids = WorkerIds()
        self._labelled = LabelledRoles()

    def take(self, scrapes: Iterable[Scrape]) -> None:
        """Looks at targets, in any order."""
        for scrape in scrapes:
            self.window.add(scrape)
            self._skipped += scrape.skipped

    def tick(self, now_s: float, discovered: Discovered) -> Estimate:
        """One control period ends."""
        window, params = self.window, self.params
        window.advance(now_s)
        roster = merged(discovered.workers, self._labelled.read(window), discovered.complete)
        if self._ids.live != roster.workers.keys():
            self._ids = WorkerIds(frozenset(roster.workers))
        view = DeploymentView(window, roster, params.model, params.period_s, self._ids)
        readings = view.read()
        self._regime, regime = tick(self._regime, readings, params.regime)
        seen = EventInput(
            readings=readings,
            roster=roster,
            pending=value_of(window.gauge(Signal.ROUTER_PENDING)),
            idle_workers={Role.PREFILL: _idle(window, roster, Role.PREFILL, self._ids)},
            prefixes=_prefixes(window),
        )
        self._events, found = events.find(self._events, seen, params.events)
        frontends = view.frontends()
        started = any(window.has(Signal.STARTED, target) for target in frontends)
        return Estimate(
            at_s=now_s,
            readings=readings,
            regime=regime,
            events=found,
            roster=roster,
            names=window.names(),
            frontends=frontends,
            failures=window.failures(),
            stale_targets=window.stale_targets(),
            orphans=orphans(window, roster, self._ids),
            skipped_lines=self._skipped,
            no_traffic_yet=bool(frontends) and not started,
        )


def _idle(window: MetricWindow, roster: Roster, role: Role, ids: WorkerIds) -> tuple[int, ...]:
    """Workers of a role that show that nothing is active."""
    busy: dict[int, float] = {}
    for point in window.points(Signal.WORKER_ACTIVE):
        number = ids.of(point.labels)
        if number is not None:
            busy[number] = busy.get(number, 0.0) + point.value
    members = [worker.worker_id for worker in roster.of(role)]
    return tuple(number for number in members if busy.get(number) == 0.0)


def _prefixes(window: MetricWindow) -> Prefixes:
    looked, cached = window.growth(Signal.HIT_RATE), window.growth(Signal.CACHED_TOKENS)
    if not isinstance(looked, Growth) or not isinstance(cached, Growth):
        return Prefixes(None, None, None)
    return Prefixes(looked.count, looked.sum, cached.sum)


def confirmed_idle(estimate: Estimate) -> bool:
    """Zero traffic, measured; not merely nothing heard."""
    return estimate.readings.started_per_s == Known(0.0) and not estimate.failures
