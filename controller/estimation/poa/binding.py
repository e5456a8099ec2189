# SPDX-License-Identifier: Apache-2.0
"""What binding decode workers as it was done costs against the best binding of the same requests.

Owns: windows of bindings, their two costs, the search. Does not own: the placement of prefills.

The law is one decode step of each worker with the batch and context that it would have: a worker
with b streams and c KV tokens takes step(b, c), and each of its streams waits that long for a
token. So a binding costs, for latency, sum_j b_j*step_j (seconds of all streams a token), for SLO
misses the streams on workers whose step exceeds the limit. The recorded state counts: who is there
already suffers too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from controller.estimation.poa.loss import MOST_ENUMERATED, Goal, Loss, loss_of
from controller.routing.decision_record import Logged
from controller.types import FloatArray, IntArray

StepTime = Callable[[FloatArray, FloatArray], FloatArray]
"""(batch, context tokens), any shape -> seconds of a decode step."""


@dataclass(frozen=True, slots=True, eq=False)
class BindingWindow:
    """n requests bound one after the other, m decode workers as the first of them found them."""

    tokens: IntArray
    """(n,) KV tokens that each brings."""
    chosen: IntArray
    """(n,)"""
    batch: IntArray
    """(m,)"""
    context: IntArray
    """(m,)"""
    limit_s: float


def binding_windows(logged: Sequence[Logged], size: int | None = None) -> list[BindingWindow]:
    """Windows of decisions whose decode worker is known: the stream's, else the expected one."""
    rows = []
    for each in logged:
        to = each.outcome.decode_id if each.outcome else each.decision.bound
        if to in each.decision.decode.worker_ids:
            rows.append((each.decision, to))
    windows = []
    size = size or max([2, *(len(row.decode.worker_ids) for row, _ in rows)])
    for start in range(0, len(rows) - size + 1, size):
        part = rows[start : start + size]
        first = part[0][0].decode
        index = {worker: j for j, worker in enumerate(first.worker_ids)}
        if any(to not in index for _, to in part):
            continue
        windows.append(
            BindingWindow(
                tokens=np.array([row.prompt_tokens for row, _ in part]),
                chosen=np.array([index[to] for _, to in part]),
                batch=np.array(first.batch),
                context=np.array(first.context_tokens),
                limit_s=part[0][0].itl_limit_ms / 1e3,
            )
        )
    return windows


def binding_cost(window: BindingWindow, to: IntArray, step: StepTime, goal: Goal) -> float:
    """What the binding `to` costs."""
    workers = len(window.batch)
    batch = window.batch + np.bincount(to, minlength=workers)
    context = window.context + np.bincount(to, window.tokens, minlength=workers)
    step_s = step(batch.astype(float), context.astype(float))
    if goal is Goal.LATENCY:
        return float((batch * step_s).sum())
    return float(batch[step_s > window.limit_s].sum())


def best_binding(window: BindingWindow, step: StepTime, goal: Goal) -> float:
    """The least cost: enumerated if small, else by moves from what was done."""
    requests, workers = len(window.tokens), len(window.batch)
    if workers**requests <= MOST_ENUMERATED:
        every = product(range(workers), repeat=requests)
        return min(binding_cost(window, np.array(to), step, goal) for to in every)
    to = window.chosen.copy()
    least = binding_cost(window, to, step, goal)
    improved = True
    while improved:
        improved = False
        for i in range(requests):
            home = to[i]
            costs = [_with(window, to, i, j, step, goal) for j in range(workers)]
            j = int(np.argmin(costs))
            to[i] = home
            if costs[j] < least - 1e-12:
                to[i], least, improved = j, costs[j], True
    return least


def _with(window: BindingWindow, to: IntArray, i: int, j: int, step: StepTime, goal: Goal) -> float:
    to[i] = j
    return binding_cost(window, to, step, goal)


def binding_loss(
    windows: Sequence[BindingWindow], step: StepTime, goal: Goal, seed: int = 0
) -> Loss:
    """Ratio of sums with its block-bootstrap interval, as for placements."""
    done = np.array([binding_cost(w, w.chosen, step, goal) for w in windows])
    best = np.minimum(done, np.array([best_binding(w, step, goal) for w in windows]))
    exact = [len(w.batch) ** len(w.tokens) <= MOST_ENUMERATED for w in windows]
    return loss_of(done, best, exact, sum(len(w.tokens) for w in windows), seed)
