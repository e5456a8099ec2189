# SPDX-License-Identifier: Apache-2.0
"""Which prefill of a worker's queue at the router is sent next.

Owns: the choice by rule code; the rules themselves are functions of the queue at one instant.
FIFO is the first; more come beside it with a code of their own.
"""

from __future__ import annotations

from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.state import State

ORDERINGS = {"fifo": 0}


@kernel
def next_in_queue(s: State, w: int, now_s: float) -> int:
    """The row to send next; the queue is not empty. `now_s` is for rules that look at deadlines."""
    return int(s.wrk[w].queue_head)
