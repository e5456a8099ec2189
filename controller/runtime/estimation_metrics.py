# SPDX-License-Identifier: Apache-2.0
"""The estimator's own Prometheus families, prefix `dynamo_equilibrium_`."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge

from controller.estimation.estimate import Estimate
from controller.estimation.poa.loss import Loss
from controller.estimation.poa.report import RoutingReport
from controller.estimation.readings import value_of
from controller.estimation.regime.values import Regime, Verdict

_PREFIX = "dynamo_equilibrium_"
_WHOLE = "all"


class EstimationMetrics:
    """Set once a tick. A value that is unknown is NaN, never 0."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}{name}", text, labels, registry=registry)

        states = [regime.value for regime in Regime]
        text = "Regime of a pool, or of `all`."
        self._regime = Enum(f"{_PREFIX}regime", text, ("pool",), states=states, registry=registry)
        self._confidence = gauge("regime_confidence", "0 to 1: how far samples agree.", "pool")
        self._utilisation = gauge(
            "saturation_ratio", "Share of the pool's capacity in use; NaN: unknown.", "pool"
        )
        self._age = gauge("pool_queue_age_seconds", "Wait that the pool's backlog means.", "pool")
        self._workers = gauge("pool_workers", "Live workers.", "pool")
        self._stale_workers = gauge("stale_endpoints", "Targets that do not answer.", "pool")
        self._unknown = gauge("readings_unknown", "Readings without a value.")
        self._stale = gauge("readings_stale", "Readings that are too old.")
        self._loss = gauge(
            "inefficiency_ratio", "Routing loss: cost over the least found.", "stage", "goal"
        )
        self._low = gauge(
            "inefficiency_ratio_low", "Lower end of its 95 % interval.", "stage", "goal"
        )
        self._high = gauge("inefficiency_ratio_high", "Upper end of it.", "stage", "goal")
        self._windows = gauge("inefficiency_windows", "Windows that it is over.", "stage", "goal")
        self._frozen = gauge("poa_frozen", "The paper's frozen-cost index, for comparison.")
        self._ticks = Counter(
            f"{_PREFIX}estimates", "Estimates by regime.", ("regime",), registry=registry
        )
        self._events = gauge("event", "1 while an event holds.", "reason")
        self._reasons: set[str] = set()

    def show(self, estimate: Estimate, routing: RoutingReport | None) -> None:
        """Everything of one tick."""
        self._verdict(_WHOLE, estimate.regime.overall)
        for role, pool in estimate.readings.pools.items():
            name = role.value
            self._verdict(name, estimate.regime.pools[role])
            self._utilisation.labels(name).set(_number(value_of(pool.utilisation)))
            self._age.labels(name).set(_number(value_of(pool.queue_age_s)))
            self._workers.labels(name).set(_number(pool.workers))
            self._stale_workers.labels(name).set(pool.stale_workers)
        self._unknown.set(len(estimate.unknown))
        self._stale.set(len(estimate.stale))
        self._ticks.labels(estimate.regime.overall.regime.value).inc()
        holding = {event.reason.value for event in estimate.events}
        self._reasons |= holding
        for reason in self._reasons:
            self._events.labels(reason).set(reason in holding)
        if routing is not None:
            self._routing(routing)

    def _routing(self, routing: RoutingReport) -> None:
        for stage, goal, loss in (
            ("prefill", "latency", routing.prefill_latency),
            ("prefill", "misses", routing.prefill_misses),
            ("decode", "latency", routing.binding_latency),
            ("decode", "misses", routing.binding_misses),
        ):
            self._one_loss(stage, goal, loss)
        self._frozen.set(_number(routing.frozen.ratio_of_sums))

    def _one_loss(self, stage: str, goal: str, loss: Loss | None) -> None:
        if loss is None:
            return
        self._loss.labels(stage, goal).set(_number(loss.ratio))
        self._low.labels(stage, goal).set(_number(loss.low))
        self._high.labels(stage, goal).set(_number(loss.high))
        self._windows.labels(stage, goal).set(loss.windows)

    def _verdict(self, pool: str, said: Verdict) -> None:
        self._regime.labels(pool).state(said.regime.value)
        self._confidence.labels(pool).set(said.confidence)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
