# SPDX-License-Identifier: Apache-2.0
"""One request's prefill leg on its way through the core: values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controller.runtime.router.records import RequestRecord
from controller.runtime.router.sight import DecodeSide
from controller.types import PrefillTask


class PrefillFailedError(Exception):
    """A prefill worker answered without a usable hand-over, or not at all.

    `gone`: it could not be reached, so it has most likely left since the decision.
    """

    def __init__(self, message: str, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits of the core, emulated seconds. All placements of a request share their sum."""

    max_wait_s: float
    prefill_timeout_s: float
    sticky_sessions: bool
    """Whether a session returns to its decode worker (history counts there)."""
    handover_s: float | None = None
    """How long a hand-over stays pinned without a decode leg; None: nobody tells when one has
    begun, so for its predicted transfer."""
    most_requests: int = 1 << 30
    """Prefills that the core holds at once; more are answered local at once."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One request's prefill leg."""

    request: dict[str, Any]
    context: Any
    task: PrefillTask
    record: RequestRecord
    side: DecodeSide
    answer_by_s: float
    only: frozenset[int] | None
