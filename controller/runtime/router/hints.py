# SPDX-License-Identifier: Apache-2.0
"""What a request says of its own importance and limits. Pure.

Owns: reading Dynamo's priority hints and per-request or per-tenant objectives. Does not own: what
is made of them (orderings, placement).

The stock frontend turns `nvext.agent_hints.{priority, strict_priority}` and the headers
`x-dynamo-request-{priority, strict-priority}` into `routing.{priority_jump, strict_priority}`, and
hands `nvext.annotations` through as they are; of other headers nothing arrives (tried on 1.4.2).
So a tenant or a limit comes as an annotation `tenant:NAME`, `ttft_target:MS`, `itl_target:MS`, or
in `extra_args` under the last two names, which are those of Dynamo's global router.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from controller.types import Slo

_MOST_URGENT = 1_000_000


def urgency(request: Mapping[str, Any]) -> int:
    """Strict priority tier, larger first; 0 where none is named."""
    tier = _number((request.get("routing") or {}).get("strict_priority"))
    return 0 if tier is None else int(min(max(tier, 0.0), _MOST_URGENT))


def jump_s(request: Mapping[str, Any]) -> float:
    """Seconds by which it counts as having come earlier; negative: later."""
    return _number((request.get("routing") or {}).get("priority_jump")) or 0.0


def tenant(request: Mapping[str, Any]) -> str | None:
    """Whose request it is, as it says itself; None: it does not say."""
    said = _annotations(request).get("tenant")
    return str(said) if said else None


class Objectives:
    """The limits of requests: their own, else their tenant's, else the deployment's."""

    def __init__(self, default: Slo, tenants: Mapping[str, Slo] | None = None) -> None:
        self.default = default
        self._tenants = dict(tenants or {})

    def known_tenant(self, name: str | None) -> str:
        """A tenant of the configuration, or `other`: clients invent names, metrics must not."""
        return name if name is not None and name in self._tenants else "other"

    def of(self, request: Mapping[str, Any]) -> Slo:
        """The limits of one request; what cannot be read counts as not said."""
        said = _annotations(request)
        extra = request.get("extra_args")
        if isinstance(extra, Mapping):
            said = {**extra, **said}
        base = self._tenants.get(str(said.get("tenant")), self.default)
        ttft_ms, itl_ms = _limit(said.get("ttft_target")), _limit(said.get("itl_target"))
        if ttft_ms is None and itl_ms is None:
            return base
        return Slo(ttft_ms or base.ttft_ms, itl_ms or base.itl_ms)


def _annotations(request: Mapping[str, Any]) -> dict[str, Any]:
    pairs = (str(each).partition(":") for each in request.get("annotations") or ())
    return {name: value for name, colon, value in pairs if colon}


def _limit(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
