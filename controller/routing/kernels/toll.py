# SPDX-License-Identifier: Apache-2.0
"""The toll rule: a prefill goes where it causes the fewest expected SLO misses, own and others'.

Owns: the comparison of prices, the test that a decode batch can bear a chunk. Does not own: the
price of a queue (forecast.py), the times (controller.costs).

price(remote i) = 1 - change of queue i's expected on-time count
price(local)    = own expected TTFT miss; only where a step with the chunk stays within a share of
                  the ITL limit, so that neither a mean nor a single gap is pushed over it, and
                  only with a fair chance to be in time

That chance is what stands for those who come later. A place beside decodes is taken until the
prefill ends; a prompt that would be late anyway gains nothing by it, and the next ones, that would
have been in time there, lose. Among late work at a prefill worker it costs nobody anything.

In the words of games: on a frozen batch (these tasks wait, nobody else comes, predictions as they
are) the price of a place is what total expected attainment loses by this task's being there, its
marginal contribution turned round: a wonderful-life utility. If tasks could revise their choices
one after another, each change that lowers the mover's price would raise total expected attainment
by as much, so that total is an exact potential, and best responses end in a pure equilibrium.
Online none of that is promised: a task chooses once, greedily, on predictions; one long prefill
that costs nobody anything now can spoil many short ones that come a moment later.
"""

from __future__ import annotations

import math

from controller.costs.compiled import compiled
from controller.costs.kernels import step_s
from controller.costs.tables import StepTables
from controller.routing.kernels.estimates import prefill_beside_s
from controller.routing.kernels.forecast import chance
from controller.routing.kernels.reasons import LOCAL, TOLL_LOCAL, TOLL_REMOTE
from controller.types import FloatArray

HURRY = 0.05
"""Expected misses that a whole TTFT limit of waiting counts for: settles near-ties by time."""
SMALLER = 2
"""How often a chunk may be halved until the decode batch bears it."""


@compiled
def bearable_chunk(
    t: StepTables,
    batch: float,
    context: float,
    prompt: float,
    beside: float,
    chunk: float,
    budget: float,
    itl_limit_s: float,
) -> float:
    """Largest of chunk, chunk/2 and chunk/4 that a decode batch can have in its steps; 0: none.

    `beside` local prefills run on that worker already and may have as large a chunk in the same
    step, but never more together than the engine's `budget` leaves beside the decodes. The last
    chunk of the prompt attends to most, so it is the longest step.
    """
    room = max(1.0, budget - batch)
    for _ in range(SMALLER + 1):
        own = min(chunk, prompt)
        now = min(own + chunk * beside, room)
        attended = max(prompt, now) - 0.5 * now
        if step_s(t, batch, context, now, now * attended) <= itl_limit_s:
            return chunk
        chunk = float(int(chunk) // 2)
    return 0.0


@compiled
def local_price(
    t: StepTables,
    batch: float,
    context: float,
    prompt: float,
    history: float,
    beside: float,
    chunk: float,
    budget: float,
    itl_limit_s: float,
    behind_s: float,
    waited_s: float,
    limit_s: float,
    cv: float,
    least_chance: float,
    error: float,
) -> tuple[float, float, float, float]:
    """(expected misses, TTFT, chunk, predicted time) of a local prefill; TTFT NaN: not to be had.

    `chunk` is the largest one to try; `itl_limit_s` the longest step that the batch shall see;
    `behind_s` the local prefills before it; `waited_s` its age; `limit_s` its TTFT limit; `error`
    multiplies predicted times (1 but in simulations). Below `least_chance` of being in time it is
    not worth the place.
    """
    chunk = bearable_chunk(t, batch, context, prompt, beside, chunk, budget, itl_limit_s / error)
    if chunk == 0.0:
        return 1.0, math.nan, 0.0, 0.0
    own_s = error * prefill_beside_s(
        t, batch, context, history, prompt - history, min(chunk + batch, budget)
    )
    ttft_s = behind_s + own_s + waited_s
    odds = chance(limit_s - ttft_s, cv * cv * (own_s * own_s + behind_s * behind_s))
    if odds < least_chance:
        return 1.0, math.nan, 0.0, 0.0
    return 1.0 - odds, ttft_s, chunk, own_s


@compiled
def toll(
    misses: FloatArray, ttft_s: FloatArray, local_misses: float, local_s: float, limit_s: float
) -> tuple[int, int]:
    """The place with the lowest price; ties go to local, then to the lower index.

    `misses` and `ttft_s` of prefill workers have shape (workers,), not empty; `local_s` is NaN
    where local is no choice; `limit_s` is the TTFT limit.
    """
    best = 0
    price = misses[0] + HURRY * ttft_s[0] / limit_s
    for i in range(1, misses.size):
        other = misses[i] + HURRY * ttft_s[i] / limit_s
        if other < price:
            best, price = i, other
    if local_misses + HURRY * local_s / limit_s <= price:
        return LOCAL, TOLL_LOCAL
    return best, TOLL_REMOTE
