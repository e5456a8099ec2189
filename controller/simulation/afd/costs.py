# SPDX-License-Identifier: Apache-2.0
"""How long one layer takes on an attention worker and on the FFN workers of a pool.

Owns: `AfdLaw`, the numbers that the compiled pipeline reads, and its derivation from a model's
shape and a GPU. Does not own: the same from measured operators (measured), the overlap (pipeline).

Every operator is a roofline: launch + max(reading the weights once, computing all tokens), and
attention adds the reading of the KV:

    attention(b, c) = launch + max(projections_read, projections_token*b) + kv_token_read*c
    ffn(t)          = launch + max(read, token*t)                            # dense
    read            = expert_read*experts*(1 - (1 - top_k/experts)^t)        # MoE, uniform routing

with b sequences that hold c KV tokens in all, and t tokens of a micro-batch over all attention
workers. Frontier (arXiv 2605.21312) simulates AFD from measured operators, but its AFD code and
ground truth are private: these are first principles, and nothing is fitted to a real AFD system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from controller.costs.architecture import Architecture
from controller.costs.collectives import Link
from controller.costs.tables import StepTables, linear_tables, vector
from controller.simulation.afd.pool import AfdError, AfdPool, FfnSplit
from controller.types import FloatArray

_ACTIVATION_BYTES = 2
# Tokens at which the curves of an MoE layer are sampled: between two of them 5 %, so that linear
# interpolation errs by less than 0.1 %.
_GRID = np.unique(np.rint(1.05 ** np.arange(0, 280)))


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a worker has. Rates are achievable ones, not those of the data sheet."""

    memory_bytes: float
    """For weights and KV: what the engine leaves of the device."""
    memory_bytes_s: float
    flops_s: float
    """At the precision of the weights."""
    launch_s: float
    """Fixed time of one layer's kernels on one worker, CUDA graphs on."""
    link: Link
    """Full duplex, to workers of the other kind."""


def h200() -> Gpu:
    """Data sheet (141 GB, 4.8 TB/s, 989 TFLOPS BF16, 400 Gb/s) times 0.9, 0.8, 0.6, 1.

    The shares, the latency and the launch time are assumptions.
    """
    return Gpu(0.9 * 141e9, 0.8 * 4.8e12, 0.6 * 989e12, 10e-6, Link(5e-6, 50e9))


class AfdLaw(NamedTuple):
    """One pool's times for compiled code: seconds by tokens and sequences.

    `attention` gives one layer on one attention worker as the step of `batch` sequences holding
    `context` tokens (controller.costs.kernels.step_s). The other pairs are curves of shape (n,):
    one layer on each FFN worker by tokens of the whole micro-batch, and the LM head by sequences
    of one attention worker. A token occupies its attention worker's link for `link_token_s` and
    that of each FFN worker for `ffn_link_token_s`, each way.
    """

    attention: StepTables
    ffn_tokens: FloatArray
    ffn_s: FloatArray
    head_sequences: FloatArray
    head_s: FloatArray
    link_latency_s: float
    link_token_s: float
    ffn_link_token_s: float


@dataclass(frozen=True, slots=True, eq=False)
class AfdCosts:
    """A model on one pool."""

    law: AfdLaw
    layers: int
    kv_tokens: int
    """KV that one attention worker can hold."""


def roofline_costs(model: Architecture, gpu: Gpu, pool: AfdPool) -> AfdCosts:
    """Costs from first principles; AfdError when the weights do not fit the workers.

    Attention workers hold projections, embedding and LM head. All layers are taken as alike: a
    model whose first layers are dense counts as MoE throughout.
    """
    read_s = model.weight_bytes / gpu.memory_bytes_s
    head = model.vocab * model.hidden
    projections = _roofline(
        model.attention_parameters * read_s, 2 * model.attention_parameters / gpu.flops_s
    )
    attention = linear_tables(
        base_s=0.0,
        per_sequence_s=0.0,
        per_context_token_s=model.kv_bytes_per_token / model.layers / gpu.memory_bytes_s,
        per_prefill_token_s=0.0,
        per_prefill_pair_s=0.0,
        max_chunk_tokens=1,
        kv_latency_s=0.0,
        kv_bytes_per_token=1.0,
        kv_bandwidth_bytes_s=1.0,
    )
    ffn_tokens, ffn_s = _ffn_curve(model, gpu, pool)
    head_sequences, head_s = _roofline(head * read_s, 2 * head / gpu.flops_s)
    return AfdCosts(
        law=law_of(
            attention._replace(dense_tokens=projections[0], dense_s=gpu.launch_s + projections[1]),
            (ffn_tokens, gpu.launch_s + ffn_s),
            (head_sequences, head_s),
            model,
            gpu.link,
            pool,
        ),
        layers=model.layers,
        kv_tokens=attention_kv_tokens(model, gpu, pool),
    )


def law_of(
    attention: StepTables,
    ffn: tuple[FloatArray, FloatArray],
    head: tuple[FloatArray, FloatArray],
    model: Architecture,
    link: Link,
    pool: AfdPool,
) -> AfdLaw:
    """Times of the workers and the pool's links as one value."""
    copies = pool.copies(model.experts_per_token if model.experts else 0)
    token_s = copies * model.hidden * _ACTIVATION_BYTES / link.bandwidth_bytes_s
    return AfdLaw(
        attention=attention,
        ffn_tokens=ffn[0],
        ffn_s=ffn[1],
        head_sequences=head[0],
        head_s=head[1],
        link_latency_s=link.latency_s,
        link_token_s=token_s,
        ffn_link_token_s=token_s / pool.ffn_workers,
    )


def attention_kv_tokens(model: Architecture, gpu: Gpu, pool: AfdPool) -> int:
    """KV tokens that fit beside the attention weights; AfdError unless all weights fit."""
    ffn = _ffn_parameters(model) * model.layers * model.weight_bytes
    holders = pool.ffn_workers if pool.split is FfnSplit.SPREAD else 1
    if ffn > holders * gpu.memory_bytes:
        raise AfdError(
            f"the FFN weights of {model.name} need {ffn / gpu.memory_bytes:.2f} workers' memory, "
            f"and {holders} hold them: spread them over more FFN workers"
        )
    weights = model.layers * model.attention_parameters + model.embedding_parameters
    free = gpu.memory_bytes - weights * model.weight_bytes
    if free < model.kv_bytes_per_token:
        raise AfdError(f"the attention weights of {model.name} leave no memory for KV")
    return int(free / model.kv_bytes_per_token)


def _ffn_parameters(model: Architecture) -> int:
    """Of one layer."""
    if not model.experts:
        return 3 * model.hidden * model.intermediate
    return (model.experts + model.shared_experts) * model.expert_parameters


def _ffn_curve(model: Architecture, gpu: Gpu, pool: AfdPool) -> tuple[FloatArray, FloatArray]:
    """One layer on each FFN worker by tokens of the micro-batch, without the launch."""
    read_s = model.weight_bytes / gpu.memory_bytes_s
    spread = pool.split is FfnSplit.SPREAD
    holders = pool.ffn_workers if spread else 1
    if not model.experts:
        weights = _ffn_parameters(model)
        return _roofline(weights * read_s / holders, 2 * weights / gpu.flops_s / pool.ffn_workers)
    seen = _GRID if spread else _GRID / pool.ffn_workers
    hit = 1 - (1 - model.experts_per_token / model.experts) ** seen
    expert = model.expert_parameters
    reading = expert * read_s * (model.experts * hit / holders + model.shared_experts)
    used = model.experts_per_token + model.shared_experts
    computing = 2 * expert / gpu.flops_s * used * _GRID / pool.ffn_workers
    return _GRID, np.maximum(reading, computing)


def _roofline(read_s: float, token_s: float) -> tuple[FloatArray, FloatArray]:
    """max(read_s, token_s*t) as a curve; its last slope goes on."""
    knee = max(2.0, read_s / token_s)
    first_s = max(read_s, token_s)
    return vector([1.0, knee, 2 * knee]), vector([first_s, token_s * knee, 2 * token_s * knee])
