# SPDX-License-Identifier: Apache-2.0
"""Which worker, in which role, a series belongs to, by its labels: each label set is read once.

Owns: the two look-ups and what they remember. Does not own: how ids are written (identity.py).
"""

from __future__ import annotations

from collections.abc import Set

from controller.estimation.exposition import Labels
from controller.estimation.identity import worker_id
from controller.estimation.metric_window import MetricWindow
from controller.estimation.roster import Role, role_named
from controller.estimation.signals import IdBase, Signal

_GENERATE = "generate"
_LABELLED = {
    Signal.REGISTERED: "router_worker_id",
    Signal.BOOKED_PREFILL: "worker_id",
    Signal.BOOKED_DECODE: "worker_id",
}
"""Series of a frontend that say what a worker is, and the label that names it (in decimal)."""


class WorkerIds:
    """Workers of series for one live set: ids that could be read in two ways go by who is alive."""

    def __init__(self, live: Set[int] = frozenset()) -> None:
        self.live = live
        self._known: dict[Labels, int | None] = {}

    def of(self, labels: Labels) -> int | None:
        """None for a series without a worker, and for what is not a worker's main endpoint."""
        if labels not in self._known:
            self._known[labels] = self._read(labels)
        return self._known[labels]

    def _read(self, labels: Labels) -> int | None:
        text = label(labels, "worker_id")
        if text is None or label(labels, "dynamo_endpoint") not in (None, _GENERATE):
            return None
        # Only a frontend's own series say the type; it writes ids in decimal, workers in hex.
        frontends = label(labels, "worker_type") is not None
        return worker_id(text, IdBase.DECIMAL if frontends else IdBase.HEX, self.live)


class LabelledRoles:
    """Roles by the `worker_type` labels that a frontend puts on its own series."""

    def __init__(self) -> None:
        self._known: dict[Labels, tuple[int, Role] | None] = {}

    def read(self, window: MetricWindow) -> dict[int, Role]:
        """Every worker that is labelled now."""
        found: dict[int, Role] = {}
        for signal, name in _LABELLED.items():
            for labels in window.labels(signal):
                if labels not in self._known:
                    self._known[labels] = _labelled(labels, name)
                said = self._known[labels]
                if said is not None:
                    found[said[0]] = said[1]
        return found


def _labelled(labels: Labels, name: str) -> tuple[int, Role] | None:
    text, role = label(labels, name), role_named(label(labels, "worker_type"))
    number = None if text is None else worker_id(text, IdBase.DECIMAL)
    return None if number is None or role is None else (number, role)


def label(labels: Labels, name: str) -> str | None:
    """The value of one label."""
    for key, value in labels:
        if key == name:
            return value
    return None
