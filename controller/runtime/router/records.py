# SPDX-License-Identifier: Apache-2.0
"""What the router writes down about a request, and where: decision log and metrics."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.types import Decision

logger = logging.getLogger(__name__)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)


@dataclass(slots=True)
class RequestRecord:
    """One prefill through the router; times are emulated milliseconds. No prompt text.

    A request has one record, and one more for each time a relay moved its stream.
    """

    request_id: str
    session_id: str | None
    arrived_unix_s: float
    prompt_tokens: int
    history_tokens: int
    sequences: int
    decision: Decision | None = None
    would: Decision | None = None
    """Shadow mode: the decision that only the log knows."""
    cached_tokens: int | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    predicted_ms: float | None = None
    reroutes: int = 0
    migrations: int = 0
    """How often the stream had been moved to another decode worker before this prefill."""
    outcome: str = "cancelled"
    """handed_over, local, rejected, failed, or cancelled when nobody waited for the answer."""

    def as_dict(self) -> dict[str, Any]:
        """Flat and JSON-ready."""
        row = asdict(self)
        decision = row.pop("decision")
        del row["would"]
        if self.would is not None:
            row |= {
                "would_place": self.would.place.value,
                "would_worker_id": self.would.worker_id,
                "would_reason": self.would.reason.value,
            }
        if self.decision is not None:
            row |= {
                "place": self.decision.place.value,
                "worker_id": self.decision.worker_id,
                "reason": self.decision.reason.value,
                "decode_id": self.decision.decode_id,
                "chunks": list(self.decision.chunks),
                "estimates_ms": {k: round(v * 1e3, 3) for k, v in decision["estimates_s"]},
            }
        return row


class DecisionLog:
    """One JSON line a request. A full disk must not cost a request: it is said once."""

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1) if path else None

    def write(self, record: RequestRecord) -> None:
        """Append one record."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(record.as_dict()) + "\n")
        except OSError as error:
            logger.error("router.decision_log_lost error=%s", error)
            self._file = None

    def close(self) -> None:
        """Flush and close."""
        if self._file is not None:
            self._file.close()
            self._file = None


class RouterMetrics:
    """The router's Prometheus families, prefix `dynamo_equilibrium_`."""

    def __init__(self, registry: CollectorRegistry, policy: str) -> None:
        prefix = "dynamo_equilibrium_"
        self._policy = policy
        self._decisions = Counter(
            f"{prefix}route_decisions",
            "Prefills placed, by place, reason and policy; sums to requests plus migrations.",
            ("decision", "reason", "policy"),
            registry=registry,
        )
        self._outcomes = Counter(
            f"{prefix}requests",
            "Prefills by how they ended; a migrated stream has one more for each migration.",
            ("outcome",),
            registry=registry,
        )
        self._reroutes = Counter(
            f"{prefix}reroutes", "Prefills decided again after a failure.", registry=registry
        )
        self._migrations = Counter(
            f"{prefix}migrations",
            "Streams that a relay moved to another decode worker.",
            registry=registry,
        )
        self._queue = Histogram(
            f"{prefix}queue_wait_seconds",
            "Wait at the router before a remote prefill was sent.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._prefill = Histogram(
            f"{prefix}prefill_seconds",
            "Remote prefill, sent to answered.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._registry = registry

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is scraped."""
        Gauge(f"dynamo_equilibrium_{name}", help_text, registry=self._registry).set_function(read)

    def migrated(self) -> None:
        """Count one stream that goes on at another decode worker."""
        self._migrations.inc()

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request."""
        self._outcomes.labels(record.outcome).inc()
        if record.decision is not None:
            place, reason = record.decision.place.value, record.decision.reason.value
            self._decisions.labels(place, reason, self._policy).inc()
        self._reroutes.inc(record.reroutes)
        if record.queue_ms is not None:
            self._queue.observe(record.queue_ms / 1e3)
        if record.prefill_ms is not None:
            self._prefill.observe(record.prefill_ms / 1e3)


def unix_now() -> float:
    """Wall clock, for the log only."""
    return time.time()
