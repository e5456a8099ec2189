# SPDX-License-Identifier: Apache-2.0
"""A prefill leg that reads its history first (AMPD's transfer mode)."""

from __future__ import annotations

import pytest

from controller.costs.model import TableCost
from controller.costs.tables import linear_tables
from controller.engine import Engine, EngineRequest, EngineSpec

pytestmark = pytest.mark.unit

SPEC = EngineSpec(block_size=4, num_blocks=32, max_num_batched_tokens=16, max_num_seqs=4)
# 10 ms a step, 1 ms a prompt token, 1 ms a KV token moved.
COSTS = TableCost(linear_tables(0.010, 0.0, 0.0, 0.001, 0.0, 16, 0.0, 1, 1_000.0))


def leg(name: str, prompt: int, history: int, first: int = 1) -> EngineRequest:
    contents = tuple(range(first, first + -(-prompt // 4)))
    return EngineRequest(name, prompt, 1, contents, hold_kv=True, history_tokens=history)


def test_only_the_increment_is_computed_once_the_history_is_there():
    engine = Engine(SPEC, COSTS)
    engine.add(leg("r", 20, 10), 0.0)
    assert engine.begin_step(0.0) is None
    (pull,) = engine.take_pulls()
    assert (pull.tokens, pull.blocks, pull.duration_s) == (10, 3, pytest.approx(0.010))
    engine.finish_pull("r", (1, 2, 3), 0.010)
    step = engine.begin_step(0.010)
    assert (step.prefill_tokens, step.prefill_kv_tokens, step.decode_requests) == (10, 10, 0)
    (output,) = engine.finish_step(0.030)
    assert output.finish is not None
    assert engine.block_contents(engine.pinned_blocks("r")) == (1, 2, 3, 4, 5)


def test_what_the_prefix_cache_holds_is_not_read():
    engine = Engine(SPEC, COSTS)
    engine.add(leg("a", 9, 0), 0.0)
    engine.begin_step(0.0)
    engine.finish_step(0.02)
    engine.add(leg("b", 20, 16), 0.02)
    engine.begin_step(0.02)
    (pull,) = engine.take_pulls()
    assert (pull.skip_blocks, pull.tokens) == (2, 8)
    engine.cancel("b", 0.02)
    engine.add(leg("c", 20, 8), 0.03)
    step = engine.begin_step(0.03)
    assert engine.take_pulls() == []
    assert step.prefill_tokens == 12


def test_a_preempted_prefill_does_not_read_again():
    spec = EngineSpec(block_size=4, num_blocks=6, max_num_batched_tokens=16, max_num_seqs=4)
    engine = Engine(spec, COSTS)
    # A decode that grows into the blocks of the prefill, which is in its second chunk by then.
    engine.add(EngineRequest("d", 4, 12, (9,)), 0.0)
    engine.begin_step(0.0)
    engine.finish_step(0.0)
    engine.add(EngineRequest("p", 16, 1, (1, 2, 3, 4), history_tokens=12, chunks=(1,)), 0.0)
    engine.begin_step(0.0)
    engine.finish_pull("p", (1, 2, 3), 0.0)
    engine.take_pulls()
    engine.finish_step(0.0)
    for _ in range(8):
        engine.begin_step(0.0)
        engine.finish_step(0.0)
    assert engine.load().preemptions_total == 1
    for _ in range(20):
        if engine.begin_step(0.0) is None:
            break
        engine.finish_step(0.0)
    assert engine.take_pulls() == []
    assert engine.load().running_requests == engine.load().waiting_requests == 0


@pytest.mark.parametrize("history", [-1, 8])
def test_a_history_must_be_shorter_than_the_prompt(history):
    with pytest.raises(ValueError, match="history_tokens must be from 0 to below prompt_tokens"):
        Engine(SPEC, COSTS).add(leg("r", 8, history), 0.0)


def test_a_decode_leg_reads_no_history():
    request = EngineRequest("r", 8, 2, (1, 2), pull_kv=True, history_tokens=4)
    with pytest.raises(ValueError, match="reads no history"):
        Engine(SPEC, COSTS).add(request, 0.0)
