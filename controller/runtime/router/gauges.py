# SPDX-License-Identifier: Apache-2.0
"""What a router holds, as gauges that are read when they are scraped."""

from __future__ import annotations

import math
from collections.abc import Callable

from controller.runtime.router.core import RouterCore
from controller.runtime.router.ports import DynamoPrefillPort
from controller.runtime.router.queues import PrefillQueues
from controller.runtime.router.router_metrics import RouterMetrics


def export_router(
    metrics: RouterMetrics,
    port: DynamoPrefillPort,
    core: RouterCore,
    queues: PrefillQueues,
    now: Callable[[], float],
) -> None:
    """The gauges of every attachment."""
    metrics.export_waits(now, queues.waits_now)
    for name, text, read in (
        ("prefill_workers", "Live prefill workers, a rank each.", lambda: len(port.live())),
        ("queue_waiting", "Prefills held back at the router.", queues.waiting),
        ("prefills_in_flight", "Prefills sent, not finished.", queues.in_flight),
        (
            "queue_oldest_age_seconds",
            "Age of the oldest unfinished prefill.",
            lambda: queues.oldest_age_s(now()),
        ),
        ("open_requests", "Prefill legs that the core holds.", lambda: core.open_requests),
        (
            "pinned_blocks",
            "KV blocks that prefill workers keep for hand-overs whose decode leg has not begun; "
            "a broker estimates it.",
            lambda: math.ceil(core.pinned.total_tokens() / queues.block_size),
        ),
    ):
        metrics.gauge(name, text, read)
