# SPDX-License-Identifier: Apache-2.0
"""Dynamo's runtime objects, made from our configuration. The only place that knows how.

`dynamo` is imported inside the functions: `--help` and the pure rooms need no Dynamo.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from controller.config import DynamoConfig

if TYPE_CHECKING:
    from dynamo.runtime import DistributedRuntime


def make_runtime(config: DynamoConfig) -> DistributedRuntime:
    """A DistributedRuntime of its own (one a worker: each is its own instance)."""
    from dynamo.runtime import DistributedRuntime

    return DistributedRuntime(
        asyncio.get_running_loop(),
        config.discovery_backend,
        config.request_plane,
        event_plane=config.event_plane,
    )


def chunk_data(item: Any) -> dict[str, Any] | None:
    """The dictionary inside a response item (Dynamo wraps it in Annotated), None for none."""
    data = item.data() if callable(getattr(item, "data", None)) else item
    return data if isinstance(data, dict) else None
