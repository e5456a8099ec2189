# SPDX-License-Identifier: Apache-2.0
"""The decode workers as the relay sees them: who is live, and a stream on one of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from controller.runtime.router.ports import DynamoStream


class DecodeStream(Protocol):
    """A decode leg on a worker."""

    def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The worker's chunks; iterate once."""
        ...

    def stop(self) -> None:
        """Ask the worker to stop; its stream still ends by itself."""
        ...


class DecodePort(Protocol):
    """The decode workers."""

    def live(self) -> tuple[int, ...]:
        """Ids of the workers that discovery lists now."""
        ...

    def open(
        self, worker_id: int, request: dict[str, Any], context: Any, leg_id: str
    ) -> DecodeStream:
        """Send a decode leg to a worker; a stop of `context` reaches it."""
        ...


class DynamoDecodePort:
    """`DecodePort` over a Dynamo endpoint."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def live(self) -> tuple[int, ...]:
        return tuple(self._client.instance_ids())

    def open(
        self, worker_id: int, request: dict[str, Any], context: Any, leg_id: str
    ) -> DynamoStream:
        return DynamoStream(self._client, worker_id, request, context, leg_id)
