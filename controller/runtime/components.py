# SPDX-License-Identifier: Apache-2.0
"""Running one of our components as a process: event loop, logging, exit code."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any


def run_component(main: Coroutine[Any, Any, None]) -> int:
    """Run until it ends; Dynamo's log format on stderr."""
    import uvloop
    from dynamo.runtime.logging import configure_dynamo_logging

    configure_dynamo_logging()
    uvloop.run(main)
    return 0
