# SPDX-License-Identifier: Apache-2.0
"""Queues of a router that nobody waits in yet."""

from __future__ import annotations

from controller.routing.kernels.orderings import FIFO, Ordering
from controller.routing.waiting import WaitingPrefills


def empty_lanes(count: int, rule: Ordering = Ordering(FIFO)) -> WaitingPrefills:  # noqa: B008
    """Nobody waits for any of `count` workers: lanes 0, 1, ..."""
    waiting = WaitingPrefills(rule)
    assert [waiting.open_lane() for _ in range(count)] == list(range(count))
    return waiting
