# SPDX-License-Identifier: Apache-2.0
"""One client's request between its legs, and the pace of one leg. Values of `streams.py`."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

from controller.routing.decision_record import OutcomeRow
from controller.routing.prompts import block_sums
from controller.runtime.router.describe import session_id
from controller.runtime.router.handover import KvLease
from controller.runtime.router.migration import Continuation
from controller.runtime.router.records import RequestRecord


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Limits of the relay."""

    migration_limit: int
    lease: KvLease
    silence_s: float | None = None
    """The frontend's stream time-out, wall clock: it quarantines a router that is silent longer."""
    transfer_s: float = math.inf
    """From sending a decode leg with a hand-over to its first chunk, wall clock; past it the
    prompt is prefilled where it streams."""
    most_streams: int = 1 << 30
    """Streams that a relay holds at once; more are refused (HTTP 529)."""


class Life:
    """One client's request between its legs."""

    def __init__(
        self, request: dict[str, Any], context: Any, limit: int, began_s: float, heard_s: float
    ) -> None:
        """`began_s` by the router's clock, `heard_s` (the client's last word) by the wall clock."""
        self.answer = Continuation(request, limit)
        self.session = session_id(request)
        self.sums = block_sums(request.get("token_ids") or ())
        self.context = context
        self.request_id: str = context.id()
        self.stopped = asyncio.ensure_future(_until_stopped(context))
        self.broken: set[int] = set()
        self.began_s = began_s
        self.heard_s = heard_s
        self.reloaded = False
        """A hand-over could not be used once already."""
        self.local_only = False
        """A transfer took too long: the next leg prefills where it streams."""
        self.record: RequestRecord | None = None
        """What the core says of the latest leg's prefill."""

    @property
    def leg_id(self) -> str:
        """An engine may still know the last leg by its id, so a migrated leg gets another."""
        count = self.answer.migrations
        return f"{self.request_id}-{count}" if count else self.request_id

    def left(self) -> bool:
        """The client has gone, or has enough."""
        return self.stopped.done() or self.context.is_stopped()


@dataclass(slots=True)
class Pace:
    """When the tokens of one leg went out; seconds on the router's clock."""

    began_s: float
    first_s: float | None = None
    last_s: float | None = None
    longest_s: float = 0.0
    tokens: int = 0

    def count(self, tokens: int, now_s: float) -> None:
        """A chunk with so many tokens was sent on."""
        if tokens == 0:
            return
        if self.last_s is None:
            self.first_s = now_s
        else:
            self.longest_s = max(self.longest_s, now_s - self.last_s)
        self.last_s = now_s
        self.tokens += tokens

    def outcome(
        self, request_id: str, migrations: int, decode_id: int, finish: str, now_s: float
    ) -> OutcomeRow:
        """As the log has it."""
        itl_ms = None
        if self.first_s is not None and self.last_s is not None and self.tokens > 1:
            itl_ms = round((self.last_s - self.first_s) * 1e3 / (self.tokens - 1), 3)
        return OutcomeRow(
            request_id=request_id,
            migrations=migrations,
            decode_id=decode_id,
            finish=finish,
            ttft_ms=None if self.first_s is None else round((self.first_s - self.began_s) * 1e3, 3),
            itl_ms=itl_ms,
            itl_max_ms=round(self.longest_s * 1e3, 3) if self.tokens > 1 else None,
            output_tokens=self.tokens,
            ended_s=round(now_s, 6),
        )


async def _until_stopped(context: Any) -> None:
    await context.async_killed_or_stopped()
