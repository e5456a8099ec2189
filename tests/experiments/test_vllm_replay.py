# SPDX-License-Identifier: Apache-2.0
"""Reading logs, the pieces around operator times, and the replay, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_kit import log_of, round_tables, write_profiles, write_run

from controller.costs.architecture import llama31_8b, qwen3_30b_a3b
from controller.costs.collectives import Link, all_reduce_s
from controller.costs.curves import Curve
from controller.costs.op_profiles import OpFit, fit_ops
from controller.costs.tables import vector
from controller.errors import UserError
from controller.runtime.operator_tables import read_op_tables
from experiments.vllm_replay import contents, replay
from experiments.vllm_runs import Run, architecture, operator_folder, read_log, read_run
from experiments.vllm_steps import EngineModel, Overheads, capture_sizes, engine_model, hop

pytestmark = pytest.mark.unit

TABLES = round_tables()
PLAIN = EngineModel(TABLES, None, num_blocks=10_000)


def run_of(rows: list[tuple[float, int, int]], **changes: object) -> Run:
    """One engine of 4 seats and 100 tokens a step."""
    run = Run(
        name="run",
        model="meta-llama/Llama-3.1-8B",
        hardware="RTX9090",
        tp=1,
        dp=1,
        expert_parallel=False,
        max_num_seqs=4,
        max_num_batched_tokens=100,
        block_size=16,
        num_blocks=None,
        prefix_caching=True,
        async_scheduling=True,
        graphs=True,
        memory_bytes=96 * 2**30,
        utilisation=0.9,
        link=Link(20e-6, 16e9),
        log=log_of(rows),
    )
    return replace(run, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ops(tmp_path_factory) -> OpFit:
    folder = tmp_path_factory.mktemp("ops") / "kit"
    write_profiles(folder)
    return fit_ops(read_op_tables(folder / "tp1"))


def test_a_request_alone_takes_its_prefill_and_its_decodes():
    log = replay(run_of([(3.0, 50, 4)]), PLAIN, 0.0)
    assert log.queued_s[0] == 3.0
    assert log.first_s[0] == pytest.approx(3.0 + 0.010 + 50 * 0.0001)
    assert log.last_s[0] == pytest.approx(log.first_s[0] + 3 * 0.011)


def test_a_busy_engine_takes_a_request_in_between_steps_and_starts_it_a_step_later():
    log = replay(run_of([(0.0, 50, 9), (0.001, 20, 1)]), PLAIN, 0.0)
    prefill_s = 0.010 + 50 * 0.0001
    assert log.queued_s[1] == pytest.approx(prefill_s)
    # The decode that was composed at the start runs first, then both together.
    assert log.first_s[1] == pytest.approx(prefill_s + 0.011 + 0.011 + 20 * 0.0001)


def test_a_repeated_prompt_is_computed_once():
    rows = [(0.0, 64, 1), (1.0, 80, 1)]
    alone, shared = (replay(run_of(rows), PLAIN, share) for share in (0.0, 0.5))
    saved = (alone.first_s - alone.queued_s) - (shared.first_s - shared.queued_s)
    assert saved == pytest.approx([0.0, 64 * 0.0001])


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.floats(0.0, 0.5))
def test_prompts_repeat_earlier_ones_and_never_more_than_the_share(prompts, share):
    made = contents(prompts, 16, share)
    seen: set[int] = set()
    repeated = 0
    for prompt, blocks in zip(prompts, made, strict=True):
        again = [block in seen for block in blocks]
        assert len(blocks) == -(-prompt // 16)
        assert again == sorted(again, reverse=True)  # the repeated blocks are leading ones
        assert not all(again)
        repeated += 16 * sum(again)
        seen.update(blocks)
    assert repeated <= share * sum(prompts)


def test_arrivals_spread_over_parallel_engines_and_do_not_wait_for_each_other():
    log = replay(run_of([(0.0, 50, 5), (0.0, 90, 5)], dp=2), PLAIN, 0.0)
    assert log.first_s == pytest.approx([0.010 + 0.005, 0.010 + 0.009])


def test_ranks_in_lock_step_wait_for_the_slowest_and_for_the_experts(ops):
    run = run_of(
        [(0.0, 50, 2), (0.0, 90, 2)], dp=2, expert_parallel=True, model="Qwen/Qwen3-30B-A3B"
    )
    model = engine_model(run, architecture(run.model), ops, Overheads(0.0, 0.0, 0.0))
    group = model.together
    assert group is not None and group.ranks == 2
    log = replay(run, EngineModel(TABLES, group, 10_000), 0.0)
    step_s = 0.010 + 90 * 0.0001 + group.extra_s([50, 90])
    assert log.first_s == pytest.approx([step_s, step_s])
    # A rank without work takes part with a dummy token.
    assert group.extra_s([0, 90]) == group.extra_s([1, 90]) < group.extra_s([50, 90])


def test_tokens_of_a_group_cost_the_same_whoever_holds_them_but_for_the_gather(ops):
    run = run_of([(0.0, 5, 2)], dp=2, expert_parallel=True, model="Qwen/Qwen3-30B-A3B")
    group = engine_model(run, qwen3_30b_a3b(), ops, Overheads(0.0, 0.0, 0.0)).together
    assert group is not None
    row = (2048 + 128) * 2 + 2048 * 2
    uneven_s = 48 * (150 - 100) * row / 16e9  # 50 tokens more to fetch for the smaller rank
    assert group.extra_s([150, 50]) - group.extra_s([100, 100]) == pytest.approx(uneven_s)


def test_steps_beyond_the_largest_graph_take_the_eager_overhead(ops):
    run = run_of([(0.0, 5, 2)], model="Qwen/Qwen3-30B-A3B")
    sizes = capture_sizes(4, 100)
    assert sizes == (1, 2, 4, 8)
    with_it, without = (
        engine_model(run, qwen3_30b_a3b(), ops, Overheads(0.0, extra_s, 0.0)).tables
        for extra_s in (0.005, 0.0)
    )
    for tokens, extra_s in ((8.0, 0.0), (9.0, 0.005), (90.0, 0.005)):
        most, least = (Curve(t.dense_tokens, t.dense_s)(tokens) for t in (with_it, without))
        assert most - least == pytest.approx(extra_s)


def test_capture_sizes_are_those_of_vllm():
    assert capture_sizes(128, 2048)[-1] == 256
    assert capture_sizes(1000, 2048)[-3:] == (480, 496, 512)


def test_a_small_all_reduce_takes_the_latency_of_the_link_whatever_the_ranks():
    link = Link(20e-6, 16e9)
    for ranks in (2, 4, 8):
        assert all_reduce_s(hop(link, ranks), ranks, 1.0) == pytest.approx(20e-6, rel=1e-4)


def test_tensor_ranks_add_collectives_and_share_the_head_norms(ops):
    run = run_of([(0.0, 5, 2)], tp=2, model="Qwen/Qwen3-30B-A3B")
    none = Overheads(0.0, 0.0, 0.0)
    free = engine_model(replace(run, link=Link(0.0, 1e18)), qwen3_30b_a3b(), ops, none).tables
    real = engine_model(run, qwen3_30b_a3b(), ops, none).tables
    at = 2048.0
    added = Curve(real.dense_tokens, real.dense_s)(at) - Curve(free.dense_tokens, free.dense_s)(at)
    each_s = 20e-6 + at * 2048 * 2 / 16e9
    assert added == pytest.approx((2 * 48 + 1) * each_s, rel=0.02)
    heads = Curve(real.sequences, real.sequence_s)(64.0) - Curve(free.sequences, free.sequence_s)(
        64
    )
    assert heads == pytest.approx(10e-6 + 0.5 * 64 * 151936 * 2 / 16e9)


def test_reported_blocks_win_over_computed_ones(ops):
    run = run_of([(0.0, 5, 2)], model="Qwen/Qwen3-30B-A3B")
    computed = engine_model(run, qwen3_30b_a3b(), ops, Overheads(0, 0, 0)).num_blocks
    reported = engine_model(replace(run, num_blocks=77), qwen3_30b_a3b(), ops, Overheads(0, 0, 0))
    assert (reported.num_blocks, computed > 1000) == (77, True)


def test_a_log_comes_back_on_one_clock(tmp_path: Path):
    log = log_of([(0.0, 10, 2), (0.5, 20, 3)])
    log = replace(log, queued_s=vector([0.002, 0.6]), first_s=vector([0.1, 0.7]))
    log = replace(log, last_s=vector([0.2, 0.9]))
    write_run(tmp_path / "run", log, tensor_parallel_size=2)
    run = read_run(tmp_path / "run")
    # The first request was taken in at once: its 2 ms count as the difference of the clocks.
    assert run.log.arrival_s == pytest.approx([0.0, 0.5])
    assert run.log.queued_s == pytest.approx([0.0, 0.598])
    assert run.log.last_s - run.log.first_s == pytest.approx([0.1, 0.2])
    assert (run.tp, run.dp, run.max_num_seqs, run.num_blocks) == (2, 1, 16, None)
    assert run.link == Link(20e-6, 16e9)


@pytest.mark.parametrize(
    "row",
    [
        "{}",
        "[]",
        '{"input_toks": 0, "output_toks": 1, "queued_ts": 0, "first_token_ts": 1, '
        '"last_token_ts": 2}',
        '{"input_toks": 5, "output_toks": 1, "queued_ts": 3, "first_token_ts": 1, '
        '"last_token_ts": 2}',
        '{"input_toks": 5, "output_toks": 1, "queued_ts": null, "first_token_ts": 1, '
        '"last_token_ts": 2}',
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str):
    (tmp_path / "requests.jsonl").write_text(row + "\n")
    with pytest.raises(UserError, match=r"requests\.jsonl:1"):
        read_log(tmp_path / "requests.jsonl")


def test_measurements_are_found_by_model_and_gpu(tmp_path: Path):
    for name, gpu in (("a", "RTX9090"), ("b", "RTX9091")):
        write_profiles(tmp_path / name, gpu, "meta-llama/Llama-3.1-8B")
    run = run_of([(0.0, 5, 2)], hardware="NVIDIA GeForce RTX 9091")
    assert operator_folder(tmp_path, run, 1) == tmp_path / "b" / "tp1"
    with pytest.raises(UserError, match="tensor parallel 2"):
        operator_folder(tmp_path, run, 2)
    with pytest.raises(UserError, match="there are a, b"):
        operator_folder(tmp_path, replace(run, hardware="other"), 1)


def test_an_unknown_model_is_one_line():
    assert architecture("/models/Llama-3.1-8B-Instruct/").name == llama31_8b().name
    with pytest.raises(UserError, match="unknown shapes"):
        architecture("gpt-2")


def test_a_request_above_the_kv_cache_is_one_line():
    with pytest.raises(UserError, match="request 0 of the log"):
        replay(run_of([(0.0, 50, 4)]), EngineModel(TABLES, None, 1), 0.0)


def test_every_request_of_a_crowded_engine_is_served_in_order():
    log = replay(run_of([(0.001 * i, 30, 3) for i in range(9)]), PLAIN, 0.0)
    assert (np.diff(log.first_s) >= 0).all() and (log.last_s > log.first_s).all()
