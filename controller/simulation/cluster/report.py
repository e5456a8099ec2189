# SPDX-License-Identifier: Apache-2.0
"""What the router gets to know about decode workers.

Owns: the reports. A worker reports when its batch has changed, not at each step: between two
reports only the tokens made since are missing, and reading the state of a worker costs nothing
(pilot: advancing every worker to read its load is where speed was lost).
"""

from __future__ import annotations

from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.state import BATCH, CONTEXT, MADE, State


@kernel
def report(s: State, w: int) -> None:
    worker = s.wrk[w]
    worker.changed = 0
    s.seen[MADE, w] = worker.made
    s.seen[BATCH, w] = worker.decodes
    s.seen[CONTEXT, w] = worker.context
