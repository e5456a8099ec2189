# SPDX-License-Identifier: Apache-2.0
"""The router's Prometheus families, prefix `dynamo_equilibrium_` (docs/metrics.md).

Owns: names, labels, buckets. Does not own: what is counted when (core.py, streams.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.estimation.waits import NAMES, LongestWaits, prompt_class
from controller.routing.decision_record import OutcomeRow
from controller.runtime.router.records import RequestRecord
from controller.types import DecisionReason

_PREFIX = "dynamo_equilibrium_"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
_SIGNED_S = (
    *(-40.0, -20.0, -10.0, -5.0, -2.5, -1.0, -0.5, -0.25, -0.1, -0.05, -0.01),
    *(0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0),
)
_NOWHERE = "none"
"""Decision of a request that was refused, or left before anything was decided."""


class RouterMetrics:
    """What one router counts. Gauges that are read when scraped are added with `gauge`."""

    def __init__(self, registry: CollectorRegistry, policy: str) -> None:
        self._registry = registry
        self._policy = policy
        self._waits = LongestWaits()
        self._decisions = self._counter(
            "route_decisions",
            "Prefills placed, by place, reason and policy; sums to requests plus migrations.",
            ("decision", "reason", "policy"),
        )
        self._outcomes = self._counter(
            "requests",
            "Prefills by how they ended; a migrated stream has one more for each migration.",
            ("outcome",),
        )
        self._tenants = self._counter(
            "tenant_requests",
            "Prefills by tenant and how they ended; those that the configuration does not name "
            "are `other`.",
            ("tenant", "outcome"),
        )
        self._reroutes = self._counter(
            "reroutes", "Prefills decided again after a failure.", ("reason",)
        )
        self._moves = self._counter(
            "late_binding_moves", "Waiting prefills that a worker with room took over."
        )
        self._migrations = self._counter(
            "migrations", "Streams that a relay moved to another decode worker."
        )
        self._swept = self._counter(
            "leases_swept",
            "Reservations that nobody released; anything but 0 is a defect, but for `handover` in "
            "the relay, whose decode leg may have failed.",
            ("lease",),
        )
        self._slack = self._histogram(
            "slack_seconds",
            "TTFT limit less predicted TTFT, at the decision; negative: predicted to miss.",
            _SIGNED_S,
            ("decision",),
        )
        self._error = self._histogram(
            "ttft_prediction_error_seconds",
            "Actual less predicted TTFT; `first_token` as the relay saw it, `prefill_end` with the "
            "predicted transfer in place of the actual one.",
            _SIGNED_S,
            ("at",),
        )
        self._queue = self._histogram(
            "queue_wait_seconds", "Wait at the router before a remote prefill was sent.", _SECONDS
        )
        self._prefill = self._histogram(
            "prefill_seconds", "Remote prefill, sent to answered.", _SECONDS
        )
        self._ttft = self._histogram(
            "ttft_seconds", "Arrival at a relay to the first token sent on.", _SECONDS
        )

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(_PREFIX + name, text, labels, registry=self._registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(_PREFIX + name, text, labels, buckets=buckets, registry=self._registry)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is scraped."""
        Gauge(_PREFIX + name, help_text, registry=self._registry).set_function(read)

    def export_waits(
        self, now: Callable[[], float], waiting: Callable[[], list[tuple[int, float]]]
    ) -> None:
        """The longest wait by class of prompt: of the last one to two minutes, or going on."""
        family = Gauge(
            f"{_PREFIX}longest_wait_seconds",
            "Longest wait at the router of the last one to two minutes, waits that go on included, "
            "by prompt length in tokens.",
            ("prompt",),
            registry=self._registry,
        )

        def read(name: str) -> float:
            now_s = now()
            ages_s = [now_s - since for tokens, since in waiting() if prompt_class(tokens) == name]
            return max([*ages_s, self._waits.longest_s(name, now_s) or 0.0])

        for name in NAMES:
            family.labels(name).set_function(partial(read, name))

    def migrated(self) -> None:
        """Count one stream that goes on at another decode worker."""
        self._migrations.inc()

    def rerouted(self, reason: str) -> None:
        """Count one prefill that is decided again."""
        self._reroutes.labels(reason).inc()

    def swept(self, lease: str, count: int) -> None:
        """Count reservations that outlived every limit."""
        if count:
            self._swept.labels(lease).inc(count)

    def waited(self, prompt_tokens: int, wait_s: float, now_s: float) -> None:
        """A wait at the router has ended."""
        self._waits.add(prompt_tokens, wait_s, now_s)

    def mispredicted(self, at: str, error_s: float) -> None:
        """Actual less predicted TTFT of one request."""
        self._error.labels(at).observe(error_s)

    def observe(self, record: RequestRecord, tenant: str) -> None:
        """Count one prefill leg that has ended; `tenant` out of a bounded set."""
        self._outcomes.labels(record.outcome).inc()
        self._tenants.labels(tenant, record.outcome).inc()
        decision = record.decision
        if decision is None or record.outcome == "rejected":
            reason = DecisionReason.NOT_DECIDED if decision is None else decision.reason
            self._decisions.labels(_NOWHERE, reason.value, self._policy).inc()
        else:
            place = decision.place.value
            self._decisions.labels(place, decision.reason.value, self._policy).inc()
            if record.predicted_ttft_s is not None:
                slack_s = record.slo.ttft_ms / 1e3 - record.predicted_ttft_s
                self._slack.labels(place).observe(slack_s)
        if record.moved:
            self._moves.inc(record.moved)
        if record.queue_ms is not None:
            self._queue.observe(record.queue_ms / 1e3)
        if record.prefill_ms is not None:
            self._prefill.observe(record.prefill_ms / 1e3)

    def streamed(self, outcome: OutcomeRow, predicted_ttft_s: float | None) -> None:
        """A relay's stream, or a leg of it, has ended."""
        if outcome.ttft_ms is None or outcome.migrations:
            return
        self._ttft.observe(outcome.ttft_ms / 1e3)
        if predicted_ttft_s is not None:
            self.mispredicted("first_token", outcome.ttft_ms / 1e3 - predicted_ttft_s)
