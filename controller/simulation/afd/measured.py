# SPDX-License-Identifier: Apache-2.0
"""AFD layer times from measured operators of one GPU (controller.costs.op_profiles).

Owns: which operators run on which kind of worker. Does not own: their fit, files.

Only for REPLICAS: the tables hold whole matrices, so an FFN worker with a share of them was never
measured. Eager kernels: launch costs are in the times. Links are the caller's assumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from controller.costs.architecture import Architecture
from controller.costs.curves import Curve
from controller.costs.op_profiles import MoeTable, OpFit, attention_cost
from controller.simulation.afd.costs import AfdCosts, Gpu, attention_kv_tokens, law_of
from controller.simulation.afd.pool import AfdError, AfdPool, FfnSplit
from controller.types import FloatArray

ATTENTION_OPERATORS = ("layernorm", "qkv_proj", "rotary_emb", "o_proj")
FFN_OPERATORS = ("layernorm", "gate_up_proj", "act_fn", "down_proj")
HEAD_OPERATORS = ("lm_head", "sampler")
_MOST_TOKENS = 8192
"""Of a worker's micro-batch at which experts are looked up; beyond, the last slope goes on."""


def measured_costs(ops: OpFit, model: Architecture, gpu: Gpu, pool: AfdPool) -> AfdCosts:
    """Costs of `model` from its operator tables; of `gpu` only memory and link are used.

    AfdError for spread FFN weights, a missing operator, or weights that do not fit.
    """
    if pool.split is not FfnSplit.REPLICAS:
        raise AfdError("measured operators cover whole FFNs only: use replicas")
    projections = _sum(ops.dense, ATTENTION_OPERATORS)
    attention = attention_cost(ops.attention).tables._replace(
        dense_tokens=projections[0], dense_s=projections[1]
    )
    ffn = _moe(ops.moe, model, pool) if ops.moe else _sum(ops.dense, FFN_OPERATORS)
    tokens = ffn[0] if ops.moe else ffn[0] * pool.ffn_workers
    return AfdCosts(
        law=law_of(
            attention,
            (tokens, ffn[1]),
            _sum(ops.per_sequence, HEAD_OPERATORS),
            model,
            gpu.link,
            pool,
        ),
        layers=model.layers,
        kv_tokens=attention_kv_tokens(model, gpu, pool),
    )


def _sum(curves: Mapping[str, Curve], names: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """Sum of some operators at the union of their points."""
    missing = [name for name in names if name not in curves]
    if missing:
        raise AfdError(f"operator {missing[0]!r} is missing; known: {', '.join(sorted(curves))}")
    at = np.unique(np.concatenate([curves[name].at for name in names]))
    return at, np.sum([curves[name](at) for name in names], axis=0)


def _moe(table: MoeTable, model: Architecture, pool: AfdPool) -> tuple[FloatArray, FloatArray]:
    """By tokens of the micro-batch; each worker's share of them hits experts at random."""
    share = np.unique(np.rint(np.geomspace(1, _MOST_TOKENS, 80)))
    hit = 1 - (1 - model.experts_per_token / model.experts) ** share
    return share * pool.ffn_workers, table(share, np.maximum(1.0, model.experts * hit))
