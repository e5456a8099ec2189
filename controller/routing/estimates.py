# SPDX-License-Identifier: Apache-2.0
"""The numbers that live placement rules compare, from a view of the cluster.

Owns: AMPD's Eq. 1 and Eq. 2, the way from a prefill's end to the first token, deadlines, how a
compiled rule's answer becomes a Decision. Does not own: the rules; the simulator's own reading of
its state (simulation/cluster/estimates.py).

    t_local    = T_pre(l_hist, l_incr) + work queued on the bound decode worker       (Eq. 1)
    t_remote_i = T_pre(cached_i, rest) + T_kv(l_incr) + work queued on prefill i      (Eq. 2)
"""

from __future__ import annotations

from controller.costs.model import TableCost
from controller.routing.kernels import entries
from controller.routing.kernels.orderings import ALGORITHM_2, Ordering
from controller.routing.kernels.reasons import LOCAL, REASONS
from controller.types import ClusterView, Decision, FloatArray, Place, PrefillTask, Slo

Estimates = tuple[tuple[str, float], ...]

_SMALL_POOL = 16
"""Up to here a decision keeps all estimates for the log; of a larger pool the least one."""


def decision(
    view: ClusterView,
    choice: int,
    reason: int,
    estimates_s: Estimates = (),
    misses: Estimates = (),
) -> Decision:
    """What a compiled rule has chosen, with worker ids and named reasons."""
    place = Place.LOCAL if choice == LOCAL else Place.REMOTE
    worker_id = None if choice == LOCAL else view.prefill.worker_ids[choice]
    return Decision(place, worker_id, REASONS[reason], estimates_s, misses=misses)


def named_estimates(
    view: ClusterView, remote_s: FloatArray, local_s: float | None = None
) -> Estimates:
    """What was compared (seconds or misses), for the decision log."""
    ids = view.prefill.worker_ids
    if len(ids) <= _SMALL_POOL:
        named = tuple(zip(map(str, ids), remote_s.tolist(), strict=True))
    else:
        least = int(remote_s.argmin())
        named = ((str(ids[least]), remote_s.item(least)),)
    return named if local_s is None else (("local", local_s), *named)


def local_estimate_s(costs: TableCost, task: PrefillTask, view: ClusterView, index: int) -> float:
    """Eq. 1: this prefill and those queued on decode worker `index`, seconds."""
    own = costs.prefill_s(task.history_tokens, task.increment_tokens)
    return own + float(view.decode.queue_s[index])


def own_times_s(costs: TableCost, task: PrefillTask, view: ClusterView) -> FloatArray:
    """This prefill alone on each prefill worker, its own prefix hits as history: (workers,)."""
    return costs.prefills_s(task.prompt_tokens, view.prefill.cached_tokens)


def remote_estimates_s(costs: TableCost, task: PrefillTask, view: ClusterView) -> FloatArray:
    """Eq. 2 for every prefill worker, shape (workers,)."""
    queued_s: FloatArray = own_times_s(costs, task, view) + view.prefill.queue_s
    return queued_s + costs.kv_transfer_s(task.increment_tokens)


def first_step_s(costs: TableCost, task: PrefillTask, view: ClusterView) -> float:
    """The first decode step with this request in the bound worker's batch; 0 without one."""
    if view.bound is None:
        return 0.0
    decode = view.decode
    context = int(decode.context_tokens[view.bound]) + task.prompt_tokens
    return costs.step_s(int(decode.batch[view.bound]) + 1, context, 0, 0.0)


def handover_s(costs: TableCost, task: PrefillTask, view: ClusterView) -> float:
    """From the end of a remote prefill to the first token: transfer and one decode step."""
    if view.bound is None:
        return costs.kv_transfer_s(task.increment_tokens)
    return entries.handover_s(
        *costs.packed,
        view.decode.batch.item(view.bound),
        view.decode.context_tokens.item(view.bound),
        task.prompt_tokens,
        task.increment_tokens,
    )


def prefill_due_s(
    costs: TableCost, task: PrefillTask, view: ClusterView, ordering: Ordering, slo: Slo
) -> float:
    """Latest end of a remote prefill for a first token in time.

    Algorithm 2 as published counts from the enqueue to the end of the prefill.
    """
    limit_s = slo.ttft_ms / 1e3
    if ordering.kind == ALGORITHM_2:
        return view.now_s + limit_s
    return task.arrival_s + limit_s - handover_s(costs, task, view)
