# SPDX-License-Identifier: Apache-2.0
"""Another ordering takes over the queues at the router in mid-run.

Owns: putting what waits in the order of the new rule. Does not own: the rules
(controller.routing.kernels). What was late is not late any more until the new rule finds it so.
"""

from __future__ import annotations

import numpy as np

from controller.routing.kernels.lanes import join, leave
from controller.simulation.cluster import state as at
from controller.simulation.cluster.compiled import entry
from controller.simulation.cluster.state import ORDERING, State
from controller.types import IntArray


def set_ordering(s: at.State, ordering: int) -> None:
    """From now on; everybody joins anew, in the order in which they came."""
    s.ctl[at.ORDERING] = ordering
    for w in range(len(s.wrk)):
        rows = _waiting(s, int(s.wrk[w].queue_head)) + _waiting(s, int(s.wrk[w].late_head))
        if rows:
            came = np.array(rows)
            _join_anew(s, w, came[np.lexsort((came, s.req["queued_s"][came]))])


def _waiting(s: at.State, r: int) -> list[int]:
    rows = []
    while r >= 0:
        rows.append(r)
        r = int(s.req[r].next)
    return rows


@entry
def _join_anew(s: State, w: int, rows: IntArray) -> None:
    for r in rows:
        leave(s.req, s.wrk[w], r)
    for r in rows:
        join(s.req, s.wrk[w], r, s.ctl[ORDERING])
