# SPDX-License-Identifier: Apache-2.0
"""How many KV blocks fit on a worker's GPUs.

Owns: the accounting that vLLM does at start-up, from shapes instead of a dummy run. Does not own:
shapes (architecture). An engine that is at hand knows better: its reported number of blocks wins.

A rank holds its share of the weights (routed experts over ep ranks if there are any, the rest over
tp, layers over pp) and of the KV, the activations of one full step, the sampler's buffers, CUDA
graphs and the driver's context:

    KV bytes = memory*utilisation - weights - activations - sampler - graphs - context
    blocks   = floor(KV bytes / (block_size * KV bytes a token and rank))

activations = max tokens a step * (2*hidden + widest) * 2 bytes, widest being the larger of the
gate-and-up output plus its product (3*intermediate/tp) and the projections (q, k, v); sampler =
max sequences * vocab * 4 bytes * 4 (float logits, probabilities, and a sort with its indices).
The two are estimates (Frontier reports 14 to 40 % error of analytic KV budgets, 2 % after
measuring non-KV memory): give `activation_bytes` where it was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from controller.costs.architecture import Architecture
from controller.costs.profile_fields import Parallelism

_ACTIVATION_BYTES = 2
_SAMPLER_BYTES = 4 * 4
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """One GPU and the engine's limits. Bytes and tokens."""

    memory_bytes: float
    utilisation: float = 0.9
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    graph_bytes: float = 0.5 * _GIB
    context_bytes: float = 0.4 * _GIB
    activation_bytes: float | None = None


def weight_bytes(model: Architecture, layout: Parallelism) -> float:
    """Weights on one rank: experts over all tp*dp ranks if ep > 1, the rest over tp and pp."""
    spread = layout.ep if layout.ep > 1 else layout.tp
    others = model.parameters - model.routed_parameters
    share = others / layout.tp + model.routed_parameters / spread
    return share * model.weight_bytes / layout.pp


def kv_bytes_per_token(model: Architecture, layout: Parallelism) -> float:
    """KV of one token on one rank of the fullest pipeline stage.

    Tensor ranks beyond the number of KV heads hold copies; a latent KV (MLA) is on every rank.
    """
    layers = math.ceil(model.layers / layout.pp)
    if model.kv_latent:
        return layers * model.kv_latent * model.kv_bytes
    heads = max(1, math.ceil(model.kv_heads / layout.tp))
    return layers * 2 * heads * model.head_dim * model.kv_bytes


def activation_bytes(model: Architecture, layout: Parallelism, budget: MemoryBudget) -> float:
    """The largest live activations of one step, and the sampler's buffers."""
    if budget.activation_bytes is not None:
        return budget.activation_bytes
    expert = model.experts_per_token * model.expert_intermediate
    mlp = 3 * max(model.intermediate if model.moe_layers < model.layers else 0, expert)
    projections = model.head_dim * (model.heads + 2 * model.kv_heads)
    widest = max(mlp, projections) / layout.tp
    step = budget.max_num_batched_tokens * (2 * model.hidden + widest) * _ACTIVATION_BYTES
    return step + budget.max_num_seqs * model.vocab * _SAMPLER_BYTES


def kv_blocks(model: Architecture, layout: Parallelism, budget: MemoryBudget) -> int:
    """Whole KV blocks that fit; 0 when the weights leave no room."""
    free = budget.memory_bytes * budget.utilisation - weight_bytes(model, layout)
    free -= activation_bytes(model, layout, budget) + budget.graph_bytes + budget.context_bytes
    return max(0, int(free // (budget.block_size * kv_bytes_per_token(model, layout))))
