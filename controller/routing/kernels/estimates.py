# SPDX-License-Identifier: Apache-2.0
"""Predicted times that rules compare, beyond Eq. 1 and Eq. 2.

Owns: how long a prefill takes beside running decodes and its hand-over after it, what a router's
queue still holds. Does not own: the cost tables, the rules.
"""

from __future__ import annotations

from controller.costs.compiled import compiled, pure
from controller.costs.kernels import step_s, transfer_s
from controller.costs.tables import StepTables


@compiled
def queue_s(waiting_s: float, flying_s: float, since_s: float, now_s: float) -> float:
    """Predicted work at a prefill worker: what waits, and what was sent less its time so far."""
    return waiting_s + max(0.0, flying_s - (now_s - since_s)) if flying_s > 0.0 else waiting_s


@pure
def prefill_beside_s(
    t: StepTables, batch: float, context: float, history: float, increment: float, budget: float
) -> float:
    """A prefill in steps of at most `budget` tokens that also serve `batch` running decodes."""
    total, done = 0.0, 0.0
    room = max(1.0, budget - batch)
    while done < increment:
        chunk = min(room, increment - done)
        total += step_s(t, batch, context, chunk, chunk * (history + done + 0.5 * chunk))
        done += chunk
    return total


@pure
def handover_s(
    t: StepTables, batch: float, context: float, prompt: float, increment: float
) -> float:
    """From a remote prefill's end to the first token: the transfer, a step with this request."""
    return transfer_s(t, increment) + step_s(t, batch + 1.0, context + prompt, 0.0, 0.0)
