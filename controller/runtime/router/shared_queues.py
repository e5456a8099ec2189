# SPDX-License-Identifier: Apache-2.0
"""The queues when other routers may own some of them, and show what they have there.

Owns: giving queues up and taking them over, grants that come from another replica, what others have
in the columns. Does not own: who owns what and how it is asked (controller.runtime.replicas).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from controller.routing.replica_state import LaneState, TaskState
from controller.runtime.router.pool_view import lane_state, mirror, unmirror
from controller.runtime.router.queues import PrefillQueues
from controller.runtime.router.tickets import QueueOwners, Ticket


class SharedQueues(PrefillQueues):
    """The queues of all live prefill workers, some of them served by other routers."""

    def share(self, owners: QueueOwners) -> None:
        """From here on other replicas may own queues; call `reown` when that changes."""
        self._owners = owners

    def granted_elsewhere(
        self, ticket: Ticket, worker_id: int, uncached: int, predicted_s: float, now_s: float
    ) -> None:
        """The owner of its queue says that a prefill of ours may be sent, to this worker."""
        lane = self._lanes.get(ticket.worker_id)
        if lane is None or lane.tickets.get(ticket.row) is not ticket or ticket.granted.done():
            return
        if worker_id != ticket.worker_id and worker_id in self._lanes:
            donor, lane = lane, self._lanes[worker_id]
            self._waiting.move(lane.number, ticket.row, uncached, predicted_s, now_s)
            lane.take(ticket, donor, uncached, predicted_s)
        self._waiting.start(lane.number, ticket.row, ticket.predicted_s, now_s)
        ticket.granted.set_result(None)

    def reown(self, now_s: float) -> None:
        """Queues may have changed hands: what waits asks its new owner, or is served here."""
        for worker_id, lane in self._lanes.items():
            owner = self._owners.owner_of(worker_id)
            if owner == lane.owner:
                continue
            lane.owner = owner
            unmirror(self._waiting, lane, now_s)
            for ticket in [t for t in lane.tickets.values() if not t.granted.done()]:
                self._owners.done(ticket)
                if owner is not None and ticket.wish.asked_by is None:
                    self._owners.ask(owner, ticket, now_s)
        self._note_ours()
        for worker_id, lane in self._lanes.items():
            self._pump(lane, now_s)
            self._draw(worker_id, now_s)

    def states(self, ourselves: str, now_s: float) -> tuple[LaneState, ...]:
        """The queues that this router serves, for the other replicas."""
        return tuple(
            lane_state(lane, ourselves, now_s)
            for lane in self._lanes.values()
            if lane.owner is None and lane.tickets
        )

    def mirror(self, unit_id: int, tasks: Iterable[TaskState], now_s: float) -> None:
        """What others have in a queue that another replica serves."""
        lane = self._lanes.get(unit_id)
        if lane is not None and lane.owner is not None:
            mirror(self._waiting, lane, tasks, now_s)

    def expect(self, unit_id: int, task: TaskState, now_s: float) -> None:
        """Other replicas, which see what we see, most likely do what we did: until they tell."""
        lane = self._lanes.get(unit_id)
        if lane is not None and lane.owner is not None:
            row = self._waiting.new_task(now_s, task.uncached, task.urgency)
            self._waiting.join(lane.number, row, task.predicted_s, np.inf, now_s)
            lane.mirrored.append(row)

    def owner(self, unit_id: int) -> str | None:
        """The other replica that serves this queue; None: we do."""
        lane = self._lanes.get(unit_id)
        return None if lane is None else lane.owner

    def owned(self) -> int:
        """Queues that this router serves."""
        return int(self._lane_rows.size)
