# SPDX-License-Identifier: Apache-2.0
"""Shapes, memory, collectives, links, and whole models composed of operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from op_kit import decode_us, texts

from controller.costs.architecture import llama31_8b, llama31_70b, qwen3_30b_a3b, qwen3_32b
from controller.costs.checks import problem
from controller.costs.collectives import Link, all_gather_s, all_reduce_s, all_to_all_s
from controller.costs.compose import ComposeOptions, compose, expert_s
from controller.costs.curves import Curve
from controller.costs.links import KvLinks, fair_finish_s
from controller.costs.memory import MemoryBudget, kv_blocks, kv_bytes_per_token, weight_bytes
from controller.costs.model import TableCost
from controller.costs.op_profiles import OpFit, fit_ops
from controller.costs.op_tables import parse_op_tables
from controller.costs.profile_fields import Parallelism
from controller.errors import UserError

pytestmark = pytest.mark.unit

WIRE = Link(1e-5, 1e9)
ONE = Parallelism()


@pytest.fixture(scope="module")
def ops() -> OpFit:
    return fit_ops(parse_op_tables(texts(moe=True), "gpu"))


@pytest.mark.parametrize(
    ("model", "billions", "kv_bytes"),
    [
        (llama31_8b(), 8.03, 131072),
        (llama31_70b(), 70.6, 327680),
        (qwen3_32b(), 32.8, 262144),
        (qwen3_30b_a3b(), 30.5, 98304),
    ],
)
def test_parameters_and_kv_bytes_are_the_published_ones(model, billions: float, kv_bytes: int):
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert model.kv_bytes_per_token == kv_bytes


def test_a_rank_holds_its_share_of_weights_and_kv():
    model, moe = llama31_8b(), qwen3_30b_a3b()
    assert weight_bytes(model, Parallelism(tp=4, pp=2)) == pytest.approx(model.parameters * 2 / 8)
    assert kv_bytes_per_token(model, Parallelism(tp=4, pp=2)) == 131072 / 8
    assert kv_bytes_per_token(model, Parallelism(tp=16)) == 131072 / 8  # copies beyond the heads
    spread = weight_bytes(moe, Parallelism(dp=2, ep=2))
    rest = (moe.parameters - moe.routed_parameters) * 2
    assert spread == pytest.approx(rest + moe.routed_parameters)
    latent = replace(moe, kv_latent=576)
    assert kv_bytes_per_token(latent, Parallelism(tp=2)) == 48 * 576 * 2


def test_blocks_follow_from_memory_and_end_at_none():
    budget = MemoryBudget(80e9, activation_bytes=2e9, graph_bytes=1e9, context_bytes=0.5e9)
    free = 72e9 - llama31_8b().parameters * 2 - 3.5e9
    assert kv_blocks(llama31_8b(), ONE, budget) == int(free // (16 * 131072))
    assert kv_blocks(llama31_70b(), ONE, budget) == 0
    assert kv_blocks(llama31_8b(), ONE, replace(budget, activation_bytes=None)) > 20000


def test_collectives_follow_the_ring():
    size = 8e6
    assert all_reduce_s(WIRE, 4, size) == pytest.approx(6e-5 + 2 * 0.75 * 8e-3)
    assert all_gather_s(WIRE, 4, size) == pytest.approx(3e-5 + 0.75 * 8e-3)
    assert all_to_all_s(WIRE, 4, size) == all_gather_s(WIRE, 4, size)
    assert WIRE.message_s(size) == pytest.approx(1e-5 + 8e-3)
    assert all_reduce_s(WIRE, 1, size) == all_reduce_s(WIRE, 4, 0.0) == WIRE.message_s(0) == 0.0


def test_a_transfer_takes_the_link_between_its_workers_and_shares_it():
    fast, slow, special = Link(0.0, 1e9), Link(0.001, 1e8), Link(0.0, 5e8)
    nodes = {"p0": "a", "d0": "a", "d1": "b"}
    links = KvLinks(1000.0, fast, slow, nodes, {("b", "a"): special})
    assert links.transfer_s(1000, "p0", "d0") == pytest.approx(1e-3)
    assert links.transfer_s(1000, "p0", "d1") == pytest.approx(0.011)
    assert links.transfer_s(1000, "p0", "d1", sharers=3) == pytest.approx(0.031)
    assert links.transfer_s(1000, "d1", "p0") == pytest.approx(2e-3)
    assert links.transfer_s(0, "p0", "d1") == links.transfer_s(9, "p0", "p0") == 0.0


def test_fair_sharing_ends_transfers_when_their_bytes_are_through():
    wire = Link(0.0, 10.0)
    # Alone for 1 s (10 bytes), then halves: the second ends 2 s later, the rest alone.
    assert fair_finish_s(wire, [0.0, 1.0], [30.0, 10.0]) == pytest.approx([4.0, 3.0])
    assert fair_finish_s(Link(0.5, 10.0), [0.0], [10.0]) == pytest.approx([1.5])
    assert fair_finish_s(wire, [2.0], [0.0]) == [2.0]


def test_a_model_is_its_layers_its_ends_and_the_host(ops: OpFit):
    model = llama31_8b()
    bare = TableCost(compose(model, ops, ONE, ComposeOptions()))
    assert problem(bare.tables) is None
    layer = 32 * (2 * 10 + (10 + 0.1 * 64) + decode_us(64, 1024))
    ends = 10 + (10 + 0.5 * 64) + 10
    expected = pytest.approx((layer + ends) * 1e-6, rel=0.02)
    assert bare.decode_step_s(64, 64 * 1024) == expected
    options = ComposeOptions(host_step_s=0.001, host_per_sequence_s=1e-5)
    hosted = TableCost(compose(model, ops, ONE, options))
    extra = hosted.decode_step_s(64, 64 * 1024) - bare.decode_step_s(64, 64 * 1024)
    assert extra == pytest.approx(0.00164, rel=0.05)


def test_tensor_ranks_meet_twice_a_layer(ops: OpFit):
    model = llama31_8b()
    alone = TableCost(compose(model, ops, Parallelism(tp=2), ComposeOptions(link=Link(0.0, 1e30))))
    wired = TableCost(compose(model, ops, Parallelism(tp=2), ComposeOptions(link=WIRE)))
    extra = wired.step_s(0, 0, 1024, 1e5) - alone.step_s(0, 0, 1024, 1e5)
    assert extra == pytest.approx(64 * all_reduce_s(WIRE, 2, 1024 * 4096 * 2), rel=0.02)
    with pytest.raises(UserError, match="needs the link"):
        compose(model, ops, Parallelism(tp=2), ComposeOptions())


def test_norms_of_heads_are_split_between_tensor_ranks(ops: OpFit):
    # Tables of two ranks repeat the times of one rank with all heads.
    norm = Curve(np.array([1.0, 2048.0]), np.array([1e-4, 1e-4]))
    normed = replace(ops, dense={**ops.dense, "qk_norm": norm})

    def added_s(tp: int) -> float:
        options = ComposeOptions(link=WIRE)
        layout = Parallelism(tp=tp)
        steps = (compose(llama31_8b(), each, layout, options) for each in (normed, ops))
        with_norm, without = (TableCost(tables).decode_step_s(64, 65536) for tables in steps)
        return with_norm - without

    assert added_s(1) == pytest.approx(32 * 2 * 1e-4, rel=0.05)
    assert added_s(2) == pytest.approx(32 * 1e-4, rel=0.05)


def test_a_full_pipeline_takes_a_stage_at_a_time(ops: OpFit):
    model, link = llama31_8b(), Link(0.0, 1e30)
    whole = TableCost(compose(model, ops, ONE, ComposeOptions()))
    staged = TableCost(compose(model, ops, Parallelism(pp=4), ComposeOptions(link=link)))
    assert staged.decode_step_s(64, 64 * 1000) < whole.decode_step_s(64, 64 * 1000)
    attention = whole.decode_step_s(16, 16 * 1000) - whole.decode_step_s(16, 0)
    found = staged.decode_step_s(64, 64 * 1000) - staged.decode_step_s(64, 0)
    assert found == pytest.approx(attention, rel=1e-6)


def test_launches_are_saved_inside_graphs_only(ops: OpFit):
    model = llama31_8b()
    plain = ComposeOptions(capture_sizes=(1, 8, 64))
    eager = TableCost(compose(model, ops, ONE, plain))
    graphs = TableCost(compose(model, ops, ONE, replace(plain, launch_s=1e-6)))
    saved = eager.decode_step_s(8, 800) - graphs.decode_step_s(8, 800)
    assert saved == pytest.approx(32 * (4 + 1) * 1e-6, rel=0.01)
    assert graphs.decode_step_s(128, 12800) == pytest.approx(eager.decode_step_s(128, 12800))


def test_experts_are_spread_over_ranks_and_dense_models_need_none(ops: OpFit):
    model, moe = qwen3_30b_a3b(), ops.moe
    assert moe is not None
    tokens = np.array([64.0])
    used = 128 * (1 - (1 - 8 / 128) ** 64)
    assert expert_s(model, moe, ONE, tokens)[0] == pytest.approx(float(moe(tokens, used)[0]))
    spread = expert_s(model, moe, Parallelism(dp=2, ep=2), tokens)[0]
    assert spread < expert_s(model, moe, ONE, tokens)[0]
    with pytest.raises(UserError, match="hold no experts"):
        compose(model, replace(ops, moe=None), ONE, ComposeOptions())
    options = ComposeOptions(link=WIRE)
    grouped = TableCost(compose(model, ops, Parallelism(dp=2, ep=2), options))
    assert problem(grouped.tables) is None
