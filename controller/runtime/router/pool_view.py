# SPDX-License-Identifier: Apache-2.0
"""The prefill workers' queues as a placement rule may look at them, and as replicas tell them.

Owns: making these from the books. Does not own: the books (controller.routing.waiting).
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.routing.replica_state import LaneState, TaskState, shortened
from controller.routing.units import rank_of, worker_of
from controller.routing.waiting import WaitingPrefills
from controller.runtime.router.tickets import Lane
from controller.types import FloatArray, IntArray, PrefillPool, PrefillTask


def pool_view(
    waiting: WaitingPrefills,
    ids: tuple[int, ...],
    rows: IntArray,
    columns: tuple[FloatArray, IntArray, FloatArray],
    hits: IntArray,
    budget_tokens: int,
    block_size: int,
    now_s: float,
) -> PrefillPool:
    """The workers `ids` in lanes `rows`; `columns` are their work, its tokens, their TTFT."""

    def forecast(
        task: PrefillTask, predicted_s: FloatArray, due_s: float, cv: float
    ) -> tuple[FloatArray, FloatArray]:
        return waiting.forecasts(
            rows,
            predicted_s,
            due_s,
            now_s,
            cv,
            arrival_s=task.arrival_s,
            urgency=task.urgency,
            jump_s=task.jump_s,
        )

    work_s, tokens, ttft_s = columns
    return PrefillPool(
        worker_ids=ids,
        ttft_window_s=ttft_s,
        queue_s=work_s,
        tokens=tokens,
        cached_tokens=hits,
        forecast=forecast,
        budget_tokens=budget_tokens,
        block_size=block_size,
    )


def lane_state(lane: Lane, ourselves: str, now_s: float) -> LaneState:
    """A queue of ours as the other replicas shall know it; what was sent first, then by age."""
    tickets = sorted(lane.tickets.values(), key=lambda t: (not t.granted.done(), t.joined_s))
    tasks = [
        TaskState(
            asked_by=ticket.wish.asked_by or ourselves,
            uncached=ticket.uncached_tokens,
            predicted_s=ticket.predicted_s,
            due_in_s=ticket.wish.due_in_s(now_s),
            arrived_ago_s=now_s - ticket.wish.arrival_s,
            urgency=ticket.wish.urgency,
            flies=ticket.granted.done(),
        )
        for ticket in tickets
    ]
    return LaneState(worker_of(lane.worker_id), rank_of(lane.worker_id), shortened(tasks))


def mirror(waiting: WaitingPrefills, lane: Lane, tasks: Iterable[TaskState], now_s: float) -> None:
    """Show in another replica's queue what others have there; takes the place of what was shown."""
    unmirror(waiting, lane, now_s)
    for task in tasks:
        row = waiting.new_task(now_s - task.arrived_ago_s, task.uncached, task.urgency)
        if task.flies:
            waiting.fly(lane.number, row, task.predicted_s, now_s)
        else:
            due_s = now_s + task.due_in_s
            waiting.join(lane.number, row, task.predicted_s, due_s, now_s, task.arrived_ago_s)
        lane.mirrored.append(row)


def unmirror(waiting: WaitingPrefills, lane: Lane, now_s: float) -> None:
    """Show nothing of others any more."""
    for row in lane.mirrored:
        waiting.forget(row, now_s)
    lane.mirrored.clear()
