# SPDX-License-Identifier: Apache-2.0
"""An estimate as a JSON-ready dictionary: `equilibrium estimate --json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from controller.estimation.estimate import Estimate
from controller.estimation.poa.report import RoutingReport
from controller.estimation.readings import Known, Reading, Stale
from controller.estimation.regime.values import Verdict
from controller.estimation.roster import Role


def estimate_json(estimate: Estimate, routing: RoutingReport | None = None) -> dict[str, Any]:
    """Values are `{value}`, `{value, at_least}`, `{unknown: why}` or `{stale_s, last}`."""
    regime = estimate.regime
    return {
        "at_unix_s": round(estimate.at_s, 3),
        "regime": _verdict(regime.overall),
        "pools": {role.value: _pool(estimate, role) for role in estimate.readings.pools},
        "paper_rule": {**_verdict(regime.paper), "ewma_ttft_p99_s": regime.ewma_ttft_p99_s},
        "readings": {name: said(each) for name, each in estimate.readings.named().items()},
        "events": [
            {
                "reason": event.reason.value,
                "pool": event.role.value if event.role else None,
                "what": event.what,
                "workers": [f"{worker:x}" for worker in event.workers],
            }
            for event in estimate.events
        ],
        "changes": [
            {
                "pool": change.role.value if change.role else None,
                "before": change.before.value,
                "after": change.after.value,
                "reason": change.reason.value,
            }
            for change in regime.changes
        ],
        "unknown": estimate.unknown,
        "stale": estimate.stale,
        "no_traffic_yet": estimate.no_traffic_yet,
        "failures": dict(estimate.failures),
        "orphans": [f"{worker:x}" for worker in estimate.orphans],
        "names": {signal.value: list(names) for signal, names in estimate.names.items()},
        "routing": None if routing is None else asdict(routing),
    }


def said(of: Reading) -> dict[str, Any]:
    """One reading."""
    if isinstance(of, Known):
        return {"value": of.value, **({"at_least": True} if of.at_least else {})}
    if isinstance(of, Stale):
        return {"stale_s": round(of.age_s, 1), "last": of.last}
    return {"unknown": of.why.value}


def _verdict(of: Verdict) -> dict[str, Any]:
    return {
        "regime": of.regime.value,
        "reason": of.reason.value,
        "confidence": round(of.confidence, 3),
    }


def _pool(estimate: Estimate, role: Role) -> dict[str, Any]:
    pool = estimate.readings.pools[role]
    limits = estimate.regime.thresholds_s.get(role)
    return {
        **_verdict(estimate.regime.pools[role]),
        "workers": pool.workers,
        "stale_workers": pool.stale_workers,
        "piled_s": estimate.regime.piled_s.get(role),
        "transition_at_s": limits[0] if limits else None,
        "saturated_at_s": limits[1] if limits else None,
        "served_by": {f"{worker:x}": count for worker, count in pool.served_by.items()},
    }
