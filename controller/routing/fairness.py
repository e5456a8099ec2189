# SPDX-License-Identifier: Apache-2.0
"""Tenants share a worker's first-come queue by weight, whoever sends more.

Owns: start-time fair queueing (Goyal, Vin, Cheng 1996): a prefill's tag is the later of the
worker's virtual time and the end of its tenant's previous one, and the queue is served by tags; a
tenant's end moves by predicted time over weight. A tenant alone is served as it comes. Does not
own: the queue (controller.routing.waiting takes a tag as the time of joining), which requests
belong to whom.
"""

from __future__ import annotations

from collections.abc import Mapping

OTHERS = ""
"""All tenants that the configuration does not name count as one."""


class FairShare:
    """The tags of one worker's queue; seconds of virtual time."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights` by tenant; `OTHERS` has weight 1 unless it is named."""
        self._weights = {OTHERS: 1.0, **weights}
        self._virtual_s = 0.0
        self._end_s: dict[str, float] = {}

    def tag_s(self, tenant: str | None, predicted_s: float) -> float:
        """When a new prefill of this tenant counts as having come."""
        name = OTHERS if tenant is None or tenant not in self._weights else tenant
        start_s = max(self._virtual_s, self._end_s.get(name, 0.0))
        self._end_s[name] = start_s + predicted_s / self._weights[name]
        return start_s

    def served(self, tag_s: float) -> None:
        """A prefill with this tag was sent."""
        self._virtual_s = max(self._virtual_s, tag_s)

    def emptied(self) -> None:
        """Nothing waits any more: nobody is owed anything, nobody owes."""
        self._virtual_s = 0.0
        self._end_s.clear()
