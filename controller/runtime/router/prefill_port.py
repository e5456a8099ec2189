# SPDX-License-Identifier: Apache-2.0
"""The prefill workers as the core sees them: who is live, and a prefill on one of them."""

from __future__ import annotations

from typing import Any, Protocol

from controller.runtime.router.calls import PrefillStream


class PrefillPort(Protocol):
    """The prefill workers as the core sees them."""

    def live(self) -> tuple[int, ...]:
        """What discovery lists now: a unit for each rank of each worker (routing/units.py)."""
        ...

    def rank(self, unit_id: int) -> int | None:
        """The rank to name to its worker; None where the worker has but one."""
        ...

    async def cached_tokens(self, token_ids: list[int]) -> dict[int, int]:
        """Prompt tokens that each unit's prefix cache holds; missing means 0."""
        ...

    def open(self, worker_id: int, request: dict[str, Any], context: Any) -> PrefillStream:
        """Send a prefill to a worker; a stop of `context` reaches it."""
        ...

    async def stock_choice(self, token_ids: list[int], request_id: str) -> int | None:
        """Where Dynamo's own KV router sends this prefill; it keeps its books until `stock_done`.

        None when that router is not there.
        """
        ...

    async def stock_done(self, request_id: str) -> None:
        """The prefill that `stock_choice` placed has ended."""
        ...

    async def release(self, request: dict[str, Any], chunk: dict[str, Any]) -> None:
        """Free the KV of a hand-over that nobody will take over."""
        ...
