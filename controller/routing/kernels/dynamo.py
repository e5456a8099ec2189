# SPDX-License-Identifier: Apache-2.0
"""How stock Dynamo places prefills: the cost of its KV router, and conditional disaggregation.

Owns: both as rules over numbers, for comparisons. Does not own: Dynamo itself; in a live
deployment its own router decides (shadow mode).

KV router (1.4.2, prefill role), in KV blocks:

    cost(i) = load_scale * max(prompt blocks - overlap credit, 0) + prefill blocks in flight at i

least cost, or a draw by softmax(-cost / temperature) over costs scaled to [0, 1].

Conditional disaggregation (experimental there), policy `isl_bounding`: local iff the decode worker
lacks fewer than `threshold` prompt tokens and these are *strictly* less than `ratio` of the
prompt: a cold prompt never goes local, however short.
"""

from __future__ import annotations

import math

from controller.costs.compiled import compiled
from controller.types import FloatArray, IntArray

EFF_ISL_THRESHOLD = 2048
EFF_ISL_RATIO = 0.7


@compiled
def kv_cost(prompt_blocks: float, hit_blocks: float, active_blocks: float) -> float:
    """Cost of one prefill worker in KV blocks; credits as by default (device 1)."""
    return max(0.0, prompt_blocks - hit_blocks) + active_blocks


@compiled
def kv_costs(
    prompt: int, block_size: int, hit_tokens: IntArray, active_tokens: IntArray, cost: FloatArray
) -> None:
    """`kv_cost` of each prefill worker into `cost`; all have shape (workers,)."""
    prompt_blocks = float((prompt + block_size - 1) // block_size)
    for i in range(cost.size):
        hits, active = float(hit_tokens[i] // block_size), float(active_tokens[i]) / block_size
        cost[i] = kv_cost(prompt_blocks, hits, active)


@compiled
def cheapest(cost: FloatArray, temperature: float, draw: float) -> int:
    """Index of the least cost; above temperature 0 a draw in [0, 1) by softmax. (workers,)."""
    low, high = cost[0], cost[0]
    best = 0
    for i in range(1, cost.size):
        if cost[i] < low:
            best, low = i, cost[i]
        high = max(high, cost[i])
    if temperature <= 0.0 or high == low:
        return best
    total = 0.0
    for i in range(cost.size):
        total += math.exp(-(cost[i] - low) / (high - low) / temperature)
    left = draw * total
    for i in range(cost.size):
        left -= math.exp(-(cost[i] - low) / (high - low) / temperature)
        if left < 0.0:
            return i
    return cost.size - 1


@compiled
def stays_local(prompt: float, history: float, threshold: float, ratio: float) -> bool:
    """Conditional disaggregation: whether the decode worker prefills what it lacks."""
    lacking = prompt - history
    return lacking < threshold and lacking < ratio * prompt
