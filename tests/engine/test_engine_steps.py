# SPDX-License-Identifier: Apache-2.0
"""Composition and duration of steps, worked by hand with the round costs of engine_kit."""

from __future__ import annotations

import pytest
from engine_kit import COSTS, drain, engine, request, spec, step

from controller.engine import (
    DuplicateRequest,
    Engine,
    EngineRequest,
    FinishReason,
    Output,
    RequestTooLarge,
)

pytestmark = pytest.mark.unit


def test_prefill_yields_the_first_token_and_each_decode_step_one_more():
    unit = engine()
    unit.add(request("a", prompt=10, output=3), 0.0)

    first, outputs, now_s = step(unit, 5.0)
    # 10 ms + 10 * 0.1 ms + 10 * (0 + 5) pairs * 1 us
    assert first.duration_s == pytest.approx(0.010 + 0.001 + 0.00005)
    assert (first.start_s, first.prefill_requests, first.prefill_tokens) == (5.0, 1, 10)
    assert (first.prefill_kv_tokens, first.decode_requests, first.decode_kv_tokens) == (0, 0, 0)
    assert outputs == [Output("a", 1, None, 0)]

    second, outputs, now_s = step(unit, now_s)
    # 10 ms + 1 decode + 10 tokens of context
    assert second.duration_s == pytest.approx(0.010 + 0.001 + 0.0001)
    assert (second.decode_requests, second.decode_kv_tokens) == (1, 10)
    assert outputs == [Output("a", 1, None, 0)]

    third, outputs, now_s = step(unit, now_s)
    assert third.decode_kv_tokens == 11
    assert outputs == [Output("a", 1, FinishReason.LENGTH, 0)]
    assert now_s == pytest.approx(5.0 + 0.01105 + 0.0111 + 0.01111)
    assert unit.begin_step(now_s) is None


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget():
    unit = engine()
    unit.add(request("a", prompt=80), 0.0)
    steps = []
    end_s = drain(unit, 0.0, lambda s, _o: steps.append(s))

    assert [s.prefill_tokens for s in steps] == [32, 32, 16]
    assert [s.prefill_kv_tokens for s in steps] == [0, 32, 64]
    # Three bases, 80 tokens, 80 * 40 pairs: chunking changes the bases only.
    assert end_s == pytest.approx(3 * 0.010 + 0.008 + 0.0032)


def test_a_prefill_chunk_shares_the_step_and_slows_the_decode():
    unit = engine()
    unit.add(request("decode", prompt=4, output=9), 0.0)
    _, _, now_s = step(unit, 0.0)
    alone, _, now_s = step(unit, now_s)
    unit.add(request("long", prompt=100), now_s)
    shared, outputs, now_s = step(unit, now_s)

    # The decode takes one token of the 32, the prefill the rest.
    assert (shared.decode_requests, shared.prefill_tokens) == (1, 31)
    assert [o.request_id for o in outputs] == ["decode"]
    extra_s = 31 * 0.0001 + 31 * 15.5 * 0.000001
    assert shared.duration_s == pytest.approx(alone.duration_s + 0.00001 + extra_s)


def test_uncharged_prefill_is_reported_but_costs_the_base_only():
    unit = engine(charge_prefill=False)
    unit.add(request("decode", prompt=4, output=9), 0.0)
    first, _, now_s = step(unit, 0.0)
    assert (first.duration_s, first.prefill_tokens) == (pytest.approx(0.010), 4)
    unit.add(request("long", prompt=100), now_s)
    shared, _, _ = step(unit, now_s)
    assert shared.prefill_tokens == 31
    assert shared.duration_s == pytest.approx(0.010 + 0.001 + 4 * 0.00001)


def test_running_prefills_come_before_waiting_ones():
    unit = engine()
    unit.add(request("first", prompt=40), 0.0)
    unit.add(request("second", prompt=30), 0.0)
    one, outputs, now_s = step(unit, 0.0)
    assert (one.prefill_requests, one.prefill_tokens, outputs) == (1, 32, [])
    # 8 tokens finish the first, 24 of the second fit beside them.
    two, outputs, now_s = step(unit, now_s)
    assert (two.prefill_requests, two.prefill_tokens, two.prefill_kv_tokens) == (2, 32, 32)
    assert [o.request_id for o in outputs] == ["first"]
    three, outputs, _ = step(unit, now_s)
    assert (three.prefill_tokens, [o.request_id for o in outputs]) == (6, ["second"])


def test_an_arrival_during_a_step_is_considered_in_the_next():
    unit = engine()
    unit.add(request("a", prompt=4), 0.0)
    running = unit.begin_step(0.0)
    unit.add(request("b", prompt=4), 0.001)
    assert running is not None
    assert [o.request_id for o in unit.finish_step(running.duration_s)] == ["a"]
    _, outputs, _ = step(unit, running.duration_s)
    assert [o.request_id for o in outputs] == ["b"]


def test_the_sequence_limit_holds_and_counts_the_running():
    unit = engine(max_num_seqs=2)
    for name in "abc":
        unit.add(request(name, prompt=4, output=2), 0.0)
    one, _, now_s = step(unit, 0.0)
    assert one.prefill_requests == 2
    two, _, now_s = step(unit, now_s)
    assert (two.decode_requests, two.prefill_requests) == (2, 0)
    three, _, _ = step(unit, now_s)
    assert three.prefill_requests == 1


def test_more_decodes_than_budget_leave_the_latest_out():
    unit = engine(max_num_batched_tokens=4)
    for name in "abcdef":
        unit.add(request(name, prompt=1, output=4), 0.0)
    one, outputs, now_s = step(unit, 0.0)
    assert (one.prefill_requests, len(outputs)) == (4, 4)
    two, outputs, _ = step(unit, now_s)
    assert (two.decode_requests, two.prefill_requests) == (4, 0)
    assert [o.request_id for o in outputs] == list("abcd")


def test_the_first_that_lacks_blocks_holds_up_those_behind():
    unit = engine(num_blocks=10)
    unit.add(request("running", prompt=20, output=5), 0.0)
    _, _, now_s = step(unit, 0.0)
    unit.add(request("big", prompt=28), now_s)  # 7 of 5 free blocks
    unit.add(request("small", prompt=4), now_s)
    two, _, now_s = step(unit, now_s)
    assert (two.decode_requests, two.prefill_requests) == (1, 0)
    assert unit.load().waiting_requests == 2


def test_a_lower_priority_value_is_served_first():
    unit = engine(max_num_seqs=1)
    unit.add(request("late", prompt=4, priority=1), 0.0)
    unit.add(request("soon", prompt=4, priority=0), 0.0)
    order: list[str] = []
    drain(unit, 0.0, lambda _s, out: order.extend(o.request_id for o in out))
    assert order == ["soon", "late"]


def test_cancel_frees_and_the_running_step_forgets_the_request():
    unit = engine(num_blocks=8)
    unit.add(request("a", prompt=16, output=4), 0.0)
    unit.add(request("b", prompt=4, output=4), 0.0)
    unit.add(request("waits", prompt=32), 0.0)
    running = unit.begin_step(0.0)
    assert running is not None
    assert unit.cancel("a", 0.001)
    assert unit.cancel("waits", 0.001)
    assert not unit.cancel("a", 0.001)
    assert unit.load().free_blocks == 7
    assert [o.request_id for o in unit.finish_step(running.duration_s)] == ["b"]
    assert unit.cancel("b", 0.1)
    load = unit.load()
    assert (load.free_blocks, load.running_requests, load.waiting_tokens) == (8, 0, 0)
    assert (load.decoding_requests, load.decode_kv_tokens) == (0, 0)


def test_load_follows_a_request():
    unit = engine()
    unit.add(request("a", prompt=40, output=3), 0.0)
    unit.add(request("b", prompt=7), 0.0)
    load = unit.load()
    assert (load.waiting_requests, load.waiting_tokens, load.free_blocks) == (2, 47, 64)
    _, _, now_s = step(unit, 0.0)
    load = unit.load()
    assert (load.waiting_requests, load.waiting_tokens) == (1, 7)
    assert (load.running_requests, load.decoding_requests) == (1, 0)
    step(unit, now_s)
    load = unit.load()
    assert (load.running_requests, load.decoding_requests, load.decode_kv_tokens) == (1, 1, 40)


def test_requests_that_never_fit_or_repeat_are_refused():
    unit = engine(num_blocks=4)
    unit.add(request("fits", prompt=10, output=7), 0.0)  # 16 tokens of KV: the last has none
    with pytest.raises(RequestTooLarge, match="needs 5 KV blocks, the engine has 4"):
        unit.add(request("too-large", prompt=10, output=8), 0.0)
    unit.add(request("prefill-leg", prompt=16, output=100, hold_kv=True), 0.0)
    with pytest.raises(DuplicateRequest):
        unit.add(request("fits", prompt=4), 0.0)


@pytest.mark.parametrize(
    "bad",
    [
        EngineRequest("r", 0, 1, ()),
        EngineRequest("r", 4, 0, (1,)),
        EngineRequest("r", 5, 1, (1,)),
    ],
)
def test_malformed_requests_are_refused(bad: EngineRequest):
    with pytest.raises(ValueError, match="request 'r'"):
        engine().add(bad, 0.0)


def test_a_spec_names_its_bad_field():
    with pytest.raises(ValueError, match="num_blocks"):
        spec(num_blocks=0)


def test_only_one_step_at_a_time():
    unit = Engine(spec(), COSTS)
    with pytest.raises(RuntimeError):
        unit.finish_step(0.0)
    unit.add(request("a", prompt=4), 0.0)
    unit.begin_step(0.0)
    with pytest.raises(RuntimeError):
        unit.begin_step(0.0)
