# SPDX-License-Identifier: Apache-2.0
"""A whole deployment's metrics as readings by pool: what detectors and reports look at.

Owns: which signal answers which question, in which order, for a stock deployment, for one behind
our router, on every version's names. Does not own: windows, the live set, what is concluded.

Prefill: arrivals are the frontend's started requests; the served are what the prefill workers have
finished, else what our router has seen finish; the backlog is the frontend's requests in their
prefill phase, else what workers and router hold. Decode: the served are what decode workers (else
the frontend) have finished, the backlog what waits in the engines for a seat. A queue's age is what
our router says, else the wait that the backlog means (Little: backlog over service rate).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controller.estimation.exposition import Labels
from controller.estimation.identity import same_model
from controller.estimation.metric_window import Keep, MetricWindow, every
from controller.estimation.readings import (
    Known,
    Reading,
    Stale,
    Unknown,
    Why,
    first_known,
    ratio,
    total,
)
from controller.estimation.roster import Role, Roster
from controller.estimation.signals import Signal
from controller.estimation.worker_ids import WorkerIds, label

_FRONTEND = (Signal.STARTED, Signal.ACTIVE, Signal.BLOCK_SIZE, Signal.MODEL_READY, Signal.QUEUED)
_FULL = 0.9
"""KV usage below which nobody can be waiting for room."""


@dataclass(frozen=True, slots=True)
class PoolReadings:
    """One pool; rates a second, times in seconds."""

    role: Role
    workers: int | None
    """Live ones; None: unknown."""
    arrived_per_s: Reading
    served_per_s: Reading
    backlog: Reading
    """Requests that this pool has not served yet (decode: that wait for a seat)."""
    oldest_s: Reading
    """Age of the oldest request that it has not served, where somebody measures it."""
    queue_age_s: Reading
    """That, else the wait that the backlog means by Little's law."""
    latency_s: Reading
    """Mean time of a prefill in its worker: what both pools' waits are measured by, since both are
    part of a TTFT."""
    utilisation: Reading
    """Share of time in forward passes; decode: share of KV in use."""
    served_by: Mapping[int, float]
    """Requests finished in the window, by worker."""
    stale_workers: int = 0


@dataclass(frozen=True, slots=True)
class DeploymentReadings:
    """Everything that one tick says of a model's deployment."""

    at_s: float
    pools: Mapping[Role, PoolReadings]
    started_per_s: Reading
    ended_per_s: Reading
    active: Reading
    ttft_mean_s: Reading
    ttft_p99_s: Reading
    itl_mean_s: Reading
    input_tokens: Reading
    output_tokens: Reading
    hit_rate: Reading
    cached_tokens: Reading
    concurrency: Reading
    """Little's law: rate x (TTFT + output tokens x ITL)."""

    def named(self) -> dict[str, Reading]:
        """Every reading by name."""
        own = {
            name: value
            for name in self.__slots__
            if isinstance(value := getattr(self, name), (Known, Unknown, Stale))
        }
        for role, pool in self.pools.items():
            for name in pool.__slots__:
                value = getattr(pool, name)
                if isinstance(value, (Known, Unknown, Stale)):
                    own[f"{role.value}.{name}"] = value
        return own


class DeploymentView:
    """Reads a window for one model (None: whatever there is).

    `period_s`: rates are over the last so many seconds (None: over the whole window, as means and
    quantiles are). A detector that adds up arrivals less service wants its own control period.
    """

    def __init__(
        self,
        window: MetricWindow,
        roster: Roster,
        model: str | None = None,
        period_s: float | None = None,
        ids: WorkerIds | None = None,
    ) -> None:
        self._period_s = period_s
        self._ids = ids or WorkerIds(roster.workers.keys())
        self._window = window
        self._roster = roster
        self._model = model
        self._homes = self._targets_by_role()

    def read(self) -> DeploymentReadings:
        """All readings as of the window's now."""
        w, mine = self._window, self._of_model
        started = self._or_idle(self._rate(Signal.STARTED, mine))
        ttft, itl = w.mean(Signal.TTFT, mine), w.mean(Signal.ITL, mine)
        output = w.mean(Signal.OUTPUT_TOKENS, mine)
        prefill = self._prefill(started)
        return DeploymentReadings(
            at_s=w.now_s,
            pools={Role.PREFILL: prefill, Role.DECODE: self._decode(prefill.latency_s)},
            started_per_s=started,
            ended_per_s=self._or_idle(self._rate(Signal.ENDED, mine)),
            active=self._or_idle(w.gauge(Signal.ACTIVE, mine)),
            ttft_mean_s=ttft,
            ttft_p99_s=w.quantile(Signal.TTFT, 0.99, mine),
            itl_mean_s=itl,
            input_tokens=w.mean(Signal.INPUT_TOKENS, mine),
            output_tokens=output,
            hit_rate=w.mean(Signal.HIT_RATE),
            cached_tokens=w.mean(Signal.CACHED_TOKENS, mine),
            concurrency=concurrency(started, ttft, output, itl),
        )

    def _prefill(self, started: Reading) -> PoolReadings:
        w, keep = self._window, self._on(Role.PREFILL)
        served = first_known(
            self._rate(Signal.WORKER_DURATION, keep),
            self._rate(Signal.EQ_PREFILLS),
            self._local_or_none(),
        )
        held = total([w.gauge(Signal.WORKER_ACTIVE, keep), self._at_our_router()])
        backlog = first_known(
            w.gauge(Signal.QUEUED, self._in_prefill), held, w.gauge(Signal.QUEUED, self._of_model)
        )
        backlog = self._or_idle(backlog)
        oldest = w.gauge(Signal.EQ_AGE)
        workers = self._count(Role.PREFILL)
        busy = self._rate(Signal.PASS_BUSY, keep)
        return PoolReadings(
            role=Role.PREFILL,
            workers=workers,
            arrived_per_s=started,
            served_per_s=served,
            backlog=backlog,
            oldest_s=oldest,
            queue_age_s=first_known(oldest, _waited(backlog, served)),
            latency_s=first_known(w.mean(Signal.WORKER_DURATION, keep), w.mean(Signal.EQ_PREFILLS)),
            utilisation=ratio(busy, Known(float(workers or 0))),
            served_by=self._served_by(Role.PREFILL),
            stale_workers=self._stale(Role.PREFILL),
        )

    def _decode(self, latency_s: Reading) -> PoolReadings:
        w, keep = self._window, self._on(Role.DECODE)
        served = first_known(
            self._rate(Signal.WORKER_DURATION, keep),
            self._or_idle(self._rate(Signal.ENDED, self._of_model)),
        )
        usage = first_known(self._kv_usage(), self._booked_usage())
        waiting = first_known(
            w.gauge(Signal.WAITING, self._at(Role.DECODE)),
            w.gauge(Signal.PASS_DECODES_QUEUED, keep),
            _none_of_none(self._or_idle(w.gauge(Signal.ACTIVE, self._of_model))),
            _nobody_waits(usage),
        )
        return PoolReadings(
            role=Role.DECODE,
            workers=self._count(Role.DECODE),
            arrived_per_s=first_known(
                self._rate(Signal.WORKER_REQUESTS, keep),
                self._or_idle(self._rate(Signal.STARTED, self._of_model)),
            ),
            served_per_s=served,
            backlog=waiting,
            oldest_s=Unknown(Why.NEVER_SEEN),
            queue_age_s=_waited(waiting, served),
            latency_s=latency_s,
            utilisation=usage,
            served_by=self._served_by(Role.DECODE),
            stale_workers=self._stale(Role.DECODE),
        )

    def frontends(self) -> tuple[str, ...]:
        """Targets that answer as a frontend."""
        w = self._window
        return tuple(t for t in w.targets if any(w.has(signal, t) for signal in _FRONTEND))

    def _rate(self, signal: Signal, keep: Keep = every) -> Reading:
        return self._window.rate(signal, keep, self._period_s)

    def _or_idle(self, found: Reading) -> Reading:
        """Series that Dynamo makes at the first request are zero until then, on a live frontend."""
        absent = isinstance(found, Unknown) and found.why is Why.NEVER_SEEN
        return Known(0.0) if absent and self.frontends() else found

    def _at_our_router(self) -> Reading:
        held = self._window.gauge(Signal.EQ_WAITING)
        return Known(0.0) if isinstance(held, Unknown) and held.why is Why.NEVER_SEEN else held

    def _local_or_none(self) -> Reading:
        """Without a prefill worker nothing is served there."""
        empty = self._roster.complete and not self._roster.of(Role.PREFILL)
        return Unknown(Why.NOT_NEEDED if empty else Why.NEVER_SEEN)

    def _count(self, role: Role) -> int | None:
        found = len(self._roster.of(role))
        return found if found or self._roster.complete else None

    def _stale(self, role: Role) -> int:
        stale = set(self._window.stale_targets())
        return sum(1 for target in self._homes.get(role, ()) if target in stale)

    def _kv_usage(self) -> Reading:
        """Mean over the decode pool's engines."""
        points = list(self._window.points(Signal.KV_USAGE, self._at(Role.DECODE)))
        summed = self._window.gauge(Signal.KV_USAGE, self._at(Role.DECODE))
        return ratio(summed, Known(float(len(points)))) if points else summed

    def _booked_usage(self) -> Reading:
        """By the frontend's own books: booked decode blocks over what the workers have."""
        blocks = self._window.gauge(Signal.BOOKED_DECODE, self._on(Role.DECODE))
        each = self._window.gauge(Signal.KV_BLOCKS, self._of_model)
        workers = Known(float(len(self._roster.of(Role.DECODE))))
        return ratio(ratio(blocks, each), workers)

    def _served_by(self, role: Role) -> dict[int, float]:
        """Who finished nothing in the window is there with 0, if it was looked at."""
        found: dict[int, float] = {}
        for _, labels, count in self._window.increases(Signal.WORKER_DURATION, self._on(role)):
            number = self._ids.of(labels)
            if number is not None:
                found[number] = found.get(number, 0.0) + count
        return found

    def _of_model(self, target: str, labels: Labels) -> bool:
        if self._model is None:
            return True
        name = label(labels, "model") or label(labels, "model_name")
        return name is None or same_model(name, self._model)

    def _in_prefill(self, target: str, labels: Labels) -> bool:
        return label(labels, "phase") == Role.PREFILL.value

    def _on(self, role: Role) -> Keep:
        """Series with a worker id: those of live workers of a role, at their main endpoint."""
        members = {worker.worker_id for worker in self._roster.of(role)}
        of = self._ids.of
        return lambda target, labels: of(labels) in members

    def _at(self, role: Role) -> Keep:
        """An engine's own series, which name no worker: those at targets of a role."""
        homes = self._homes.get(role, set())
        return lambda target, labels: target in homes and self._of_model(target, labels)

    def _targets_by_role(self) -> dict[Role, set[str]]:
        """Which target shows workers of which role."""
        homes: dict[Role, set[str]] = {}
        roles = (Role.PREFILL, Role.DECODE)
        members = {role: {w.worker_id for w in self._roster.of(role)} for role in roles}
        for signal in (Signal.WORKER_ACTIVE, Signal.WORKER_REQUESTS):
            for point in self._window.points(signal):
                number = self._ids.of(point.labels)
                for role in roles:
                    if number in members[role]:
                        homes.setdefault(role, set()).add(point.target)
        return homes


def concurrency(rate: Reading, ttft_s: Reading, tokens: Reading, itl_s: Reading) -> Reading:
    """Requests in the system by Little's law; unknown where an operand is."""
    if isinstance(rate, Known) and rate.value == 0.0:
        return Known(0.0)
    decoding = ratio(tokens, Known(1.0))
    both = total([ttft_s, _product(decoding, itl_s)])
    return _product(rate, both)


def orphans(window: MetricWindow, roster: Roster, ids: WorkerIds) -> tuple[int, ...]:
    """Workers with per-worker series that are not registered any more."""
    found = {
        number
        for signal in (Signal.BOOKED_PREFILL, Signal.BOOKED_DECODE, Signal.WORKER_ACTIVE)
        for labels in window.labels(signal)
        if (number := ids.of(labels)) is not None and not roster.counts(number)
    }
    return tuple(sorted(found))


def _waited(backlog: Reading, served_per_s: Reading) -> Reading:
    """The wait that a backlog means; no time for none."""
    if isinstance(backlog, Known) and backlog.value == 0.0:
        return Known(0.0)
    return ratio(backlog, served_per_s)


def _none_of_none(active: Reading) -> Reading:
    return active if active == Known(0.0) else Unknown(Why.NEVER_SEEN)


def _nobody_waits(usage: Reading) -> Reading:
    if isinstance(usage, Known) and usage.value < _FULL:
        return Known(0.0)
    return usage if not isinstance(usage, Known) else Unknown(Why.NEVER_SEEN)


def _product(a: Reading, b: Reading) -> Reading:
    for each in (a, b):
        if not isinstance(each, Known):
            return each
    assert isinstance(a, Known) and isinstance(b, Known)
    value = a.value * b.value
    return Known(value) if math.isfinite(value) else Unknown(Why.NOT_A_NUMBER)
