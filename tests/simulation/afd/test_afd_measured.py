# SPDX-License-Identifier: Apache-2.0
"""AFD layer times from operator tables, by hand and from the measured ones where they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from shared_data import shared_path

from controller.costs.architecture import llama31_8b, qwen3_30b_a3b
from controller.costs.attention_fit import AttentionTables
from controller.costs.curves import Curve
from controller.costs.op_profiles import OpFit, fit_moe, fit_ops
from controller.costs.op_tables import MoeSamples
from controller.costs.tables import linear_tables
from controller.runtime.operator_tables import read_op_tables
from controller.simulation.afd.costs import h200
from controller.simulation.afd.measured import FFN_OPERATORS, measured_costs
from controller.simulation.afd.pipeline import LayerTimes, fixed_times
from controller.simulation.afd.pool import AfdError, AfdPool, FfnSplit


def by_hand() -> OpFit:
    """Each operator takes 1 s and 0.1 s a token; attention 0.01 s a KV token."""
    line = Curve(np.array([0.0, 10.0]), np.array([1.0, 2.0]))
    tables = linear_tables(0.0, 0.0, 0.01, 0.0, 0.0, 1, 0.0, 1.0, 1.0)
    names = {"layernorm", "qkv_proj", "rotary_emb", "o_proj", *FFN_OPERATORS}
    return OpFit(
        attention=AttentionTables(*(getattr(tables, name) for name in AttentionTables._fields)),
        dense=dict.fromkeys(names, line),
        per_sequence={"lm_head": line, "sampler": line},
        moe=None,
    )


def times(ops: OpFit, ffn_workers: int, tokens: int, moe: bool = False) -> LayerTimes:
    model = qwen3_30b_a3b() if moe else llama31_8b()
    law = measured_costs(ops, model, h200(), AfdPool(1, ffn_workers)).law
    return fixed_times(law, np.array([[tokens]]), np.array([[100]]))


@pytest.mark.unit
def test_each_worker_runs_its_own_operators() -> None:
    found = times(by_hand(), ffn_workers=2, tokens=20)
    assert found.attention_s[0, 0] == pytest.approx(4 * (1 + 2.0) + 1.0)
    assert found.ffn_s[0] == pytest.approx(4 * (1 + 0.1 * 20 / 2))
    assert found.head_s[0, 0] == pytest.approx(2 * (1 + 2.0))


@pytest.mark.unit
def test_each_replica_hits_the_experts_of_its_own_tokens() -> None:
    tokens, activated = np.meshgrid([1.0, 16.0, 1000.0], [1.0, 8.0, 60.0, 128.0])
    samples = MoeSamples(tokens.ravel(), activated.ravel(), activated.ravel())
    table = fit_moe(samples)
    ops = replace(by_hand(), moe=table)
    for workers, count in ((1, 16), (2, 32), (4, 64)):
        hit = 128 * (1 - (1 - 8 / 128) ** 16)
        assert times(ops, workers, count, moe=True).ffn_s[0] == pytest.approx(hit, rel=0.02)


@pytest.mark.unit
def test_what_the_tables_lack_is_named() -> None:
    with pytest.raises(AfdError, match="measured operators cover whole FFNs only"):
        measured_costs(by_hand(), llama31_8b(), h200(), AfdPool(1, 2, FfnSplit.SPREAD))
    short = replace(by_hand(), dense={"qkv_proj": by_hand().dense["qkv_proj"]})
    with pytest.raises(AfdError, match="operator 'layernorm' is missing; known: qkv_proj"):
        times(short, 1, 1)


@pytest.mark.integration
def test_measured_llama_layers_are_the_sums_of_their_operators() -> None:
    folder = shared_path("validation/op_profiles/rtxpro6000_llama31_8b/tp1")
    ops = fit_ops(read_op_tables(folder))
    law = measured_costs(ops, llama31_8b(), h200(), AfdPool(1, 1)).law
    found = fixed_times(law, np.array([[128]]), np.array([[128 * 2048]]))
    # Rows of the files in microseconds: 128 tokens through qkv (43.0) and o (31.5), 128 decodes at
    # 2,048 (760.1); gate and up (180.5), activation (3.4), down (94.5). The rest is small.
    assert 1e6 * found.attention_s[0, 0] == pytest.approx(43.0 + 31.5 + 760.1, rel=0.03)
    assert 1e6 * found.ffn_s[0] == pytest.approx(180.5 + 3.4 + 94.5, rel=0.03)
