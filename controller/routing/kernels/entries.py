# SPDX-License-Identifier: Apache-2.0
"""Kernels that take cost tables, behind signatures that are cheap to call from Python.

Owns: unpacking (controller.costs.calls). Does not own: the rules. The simulator calls those
directly.
"""

from __future__ import annotations

from controller.costs.calls import Bounds, unpack
from controller.costs.compiled import compiled
from controller.costs.tables import MAX_CHUNK, Floats
from controller.routing.kernels import deflect, estimates
from controller.routing.kernels import toll as tolls
from controller.types import IntArray


@compiled
def beside_s(
    data: Floats, bounds: Bounds, batch: float, context: float, history: float, increment: float
) -> float:
    """`estimates.prefill_beside_s` in the tables' own chunks."""
    tables = unpack(data, bounds)
    budget = tables.options[MAX_CHUNK]
    return estimates.prefill_beside_s(tables, batch, context, history, increment, budget)


@compiled
def handover_s(
    data: Floats, bounds: Bounds, batch: int, context: int, prompt: int, increment: int
) -> float:
    """`estimates.handover_s`."""
    tables = unpack(data, bounds)
    return estimates.handover_s(
        tables, float(batch), float(context), float(prompt), float(increment)
    )


@compiled
def local_price(
    data: Floats,
    bounds: Bounds,
    batch: float,
    context: float,
    prompt: float,
    history: float,
    beside: float,
    most_chunk: float,
    budget: float,
    itl_limit_s: float,
    behind_s: float,
    waited_s: float,
    limit_s: float,
    cv: float,
    least_chance: float,
) -> tuple[float, float, float, float]:
    """`toll.local_price` with the engine's step budget; `most_chunk` 0: that budget."""
    tables = unpack(data, bounds)
    budget = min(budget, tables.options[MAX_CHUNK])
    return tolls.local_price(
        tables,
        batch,
        context,
        prompt,
        history,
        beside,
        most_chunk if most_chunk > 0.0 else budget,
        budget,
        itl_limit_s,
        behind_s,
        waited_s,
        limit_s,
        cv,
        least_chance,
        1.0,
    )


@compiled
def best_prefill(
    data: Floats, bounds: Bounds, ahead_tokens: IntArray, prompt: float, budget: float
) -> tuple[int, float]:
    """`deflect.best_prefill`."""
    return deflect.best_prefill(unpack(data, bounds), ahead_tokens, prompt, budget)


@compiled
def best_decode(
    data: Floats,
    bounds: Bounds,
    batch: IntArray,
    context: IntArray,
    busy: IntArray,
    budget: IntArray,
    only: int,
    prompt: float,
    step_limit_s: float,
    counts: IntArray,
) -> tuple[int, float]:
    """`deflect.best_decode`."""
    tables = unpack(data, bounds)
    return deflect.best_decode(
        tables, batch, context, busy, budget, only, prompt, step_limit_s, counts
    )
