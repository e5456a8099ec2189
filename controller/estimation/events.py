# SPDX-License-Identifier: Apache-2.0
"""What has happened to a deployment beside its load: closed reasons, each from readings only.

Owns: the rules, how many windows each must hold. Does not own: what to do about them (doctor says).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from controller.estimation.deployment import DeploymentReadings, PoolReadings
from controller.estimation.readings import Known, value_of
from controller.estimation.roster import Role, RoleSource, Roster


class EventReason(str, Enum):
    """Closed: append, never reorder or rename."""

    PREFILL_POOL_EMPTY = "prefill_pool_empty"
    """No prefill worker is registered though the decode workers need one."""
    PREFILL_POOL_UNUSED = "prefill_pool_unused"
    """Prefill workers finish nothing while decode workers do."""
    WORKERS_STARVED = "workers_starved"
    """Some workers of a pool get far less than an equal share."""
    QUEUE_THRESHOLD = "queue_threshold"
    """The router holds requests back while workers have nothing to do."""
    PREFIX_SIGNAL_DEAD = "prefix_signal_dead"
    """The router never sees a prefix hit though engines reuse prefixes."""
    QUEUE_STUCK = "queue_stuck"
    """Nothing leaves a pool that has a backlog."""
    DISCOVERY_EMPTY = "discovery_empty"
    """Discovery shows nobody for a while: not the same as everybody gone."""


@dataclass(frozen=True, slots=True)
class EventParams:
    """Windows are control periods."""

    unused_windows: int = 2
    threshold_windows: int = 2
    stuck_s: float = 30.0
    discovery_s: float = 30.0
    starved_share: float = 0.2
    """Of an equal share, below which a worker counts as starved."""
    starved_least: float = 20.0
    """Requests a worker of the pool, on average, before shares mean anything."""
    hits_least: float = 20.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that holds now. `workers`: those concerned."""

    reason: EventReason
    role: Role | None
    what: str
    workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EventState:
    """Since when, or for how many windows, something has held."""

    since_s: Mapping[str, float] = field(default_factory=dict)
    windows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What router and frontend say of prefix hits; None is unknown."""

    looked_up: float | None
    hit_sum: float | None
    cached_tokens: float | None


@dataclass(frozen=True, slots=True)
class EventInput:
    """One control period."""

    readings: DeploymentReadings
    roster: Roster
    pending: float | None = None
    """Requests in the stock router's queue."""
    idle_workers: Mapping[Role, tuple[int, ...]] = field(default_factory=dict)
    """Live workers with nothing active, by pool."""
    prefixes: Prefixes = Prefixes(None, None, None)


def find(
    state: EventState, now: EventInput, params: EventParams
) -> tuple[EventState, tuple[Event, ...]]:
    """The events that hold after one more period."""
    held = _Held(state, now.readings.at_s)
    pools = now.readings.pools
    found = [
        _pool_empty(now.roster),
        _unused(pools, held, params),
        *(_starved(pool, params) for pool in pools.values()),
        _threshold(now, held, params),
        _prefix_dead(now.prefixes, params),
        *(_stuck(pool, held, params) for pool in pools.values()),
        _nobody(now.roster, held, params),
    ]
    return held.state(), tuple(each for each in found if each is not None)


def starvation(served_by: Mapping[int, float]) -> tuple[float, tuple[int, ...]]:
    """(0 for equal shares to 1 for one worker taking all, workers by share, least first).

    The index is the Gini coefficient scaled by its largest value for so many workers.
    """
    order = sorted(served_by, key=lambda worker: served_by[worker])
    count, whole = len(order), sum(served_by.values())
    if count < 2 or whole <= 0:
        return 0.0, tuple(order)
    weighted = sum((i + 1) * served_by[worker] for i, worker in enumerate(order))
    gini = 2.0 * weighted / (count * whole) - (count + 1.0) / count
    return gini * count / (count - 1.0), tuple(order)


class _Held:
    """For how long conditions have held."""

    def __init__(self, state: EventState, at_s: float) -> None:
        self._before = state
        self._at_s = at_s
        self._since: dict[str, float] = {}
        self._windows: dict[str, int] = {}

    def seconds(self, name: str, holds: bool) -> float:
        if not holds:
            return 0.0
        self._since[name] = self._before.since_s.get(name, self._at_s)
        return self._at_s - self._since[name]

    def count(self, name: str, holds: bool) -> int:
        if not holds:
            return 0
        self._windows[name] = self._before.windows.get(name, 0) + 1
        return self._windows[name]

    def state(self) -> EventState:
        return EventState(self._since, self._windows)


def _pool_empty(roster: Roster) -> Event | None:
    decode = roster.of(Role.DECODE)
    needed = any(Role.PREFILL.value in worker.needs for worker in decode)
    if not roster.complete or not needed or roster.of(Role.PREFILL):
        return None
    named_alike = sum(worker.source is RoleSource.COMPONENT for worker in decode)
    hint = "; none of them says its role in a model card" if named_alike > 1 else ""
    return Event(
        EventReason.PREFILL_POOL_EMPTY,
        Role.PREFILL,
        f"{len(decode)} decode workers need a prefill worker and none is registered{hint}",
    )


def _unused(pools: Mapping[Role, PoolReadings], held: _Held, params: EventParams) -> Event | None:
    prefill, decode = pools[Role.PREFILL], pools[Role.DECODE]
    served = value_of(decode.served_per_s)
    holds = bool(prefill.workers) and prefill.served_per_s == Known(0.0) and bool(served)
    if held.count("unused", holds) < params.unused_windows:
        return None
    return Event(
        EventReason.PREFILL_POOL_UNUSED,
        Role.PREFILL,
        f"{prefill.workers} prefill workers finish nothing while decode workers finish "
        f"{served:.3g} requests/s: everything is prefilled on decode workers",
    )


def _starved(pool: PoolReadings, params: EventParams) -> Event | None:
    shares = pool.served_by
    if len(shares) < 2 or sum(shares.values()) < params.starved_least * len(shares):
        return None
    equal = sum(shares.values()) / len(shares)
    poor = tuple(w for w, n in sorted(shares.items()) if n < params.starved_share * equal)
    if not poor:
        return None
    index, _ = starvation(shares)
    names = ", ".join(f"{worker:x}" for worker in poor)
    return Event(
        EventReason.WORKERS_STARVED,
        pool.role,
        f"{len(poor)} of {len(shares)} {pool.role.value} workers get under "
        f"{params.starved_share:.0%} of an equal share (index {index:.2f}): {names}",
        poor,
    )


def _threshold(now: EventInput, held: _Held, params: EventParams) -> Event | None:
    idle = now.idle_workers.get(Role.PREFILL, ())
    if held.count("threshold", bool(now.pending) and bool(idle)) < params.threshold_windows:
        return None
    return Event(
        EventReason.QUEUE_THRESHOLD,
        Role.PREFILL,
        f"the router's queue holds {now.pending:.0f} requests back while {len(idle)} prefill "
        "workers have nothing to do: its threshold is set too low",
        idle,
    )


def _prefix_dead(prefixes: Prefixes, params: EventParams) -> Event | None:
    looked, hits, cached = prefixes.looked_up, prefixes.hit_sum, prefixes.cached_tokens
    if looked is None or hits is None or cached is None:
        return None
    if looked < params.hits_least or hits > 0 or cached <= 0:
        return None
    return Event(
        EventReason.PREFIX_SIGNAL_DEAD,
        None,
        f"none of {looked:.0f} routing decisions saw a prefix hit, yet engines reused "
        f"{cached:.0f} prompt tokens: KV events do not reach the router, which goes by load alone",
    )


def _stuck(pool: PoolReadings, held: _Held, params: EventParams) -> Event | None:
    backlog = value_of(pool.backlog)
    holds = bool(backlog) and pool.served_per_s == Known(0.0)
    stuck_s = held.seconds(f"stuck.{pool.role.value}", holds)
    if stuck_s < params.stuck_s:
        return None
    return Event(
        EventReason.QUEUE_STUCK,
        pool.role,
        f"{backlog:.0f} requests wait for {pool.role.value} workers and none has left for "
        f"{stuck_s:.0f} s",
    )


def _nobody(roster: Roster, held: _Held, params: EventParams) -> Event | None:
    empty = roster.complete and not roster.workers
    if held.seconds("nobody", empty) < params.discovery_s or not empty:
        return None
    return Event(EventReason.DISCOVERY_EMPTY, None, "discovery shows no worker at all")
