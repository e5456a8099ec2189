# SPDX-License-Identifier: Apache-2.0
"""Steps composed while the one before them runs, and admissions that need the whole prompt."""

from __future__ import annotations

import pytest
from engine_kit import COSTS, drain, engine, request, spec, step
from hypothesis import given
from hypothesis import strategies as st

from controller.engine import Engine, FinishReason

pytestmark = pytest.mark.unit


def test_an_arrival_during_a_step_joins_the_step_after_the_next():
    unit = engine(async_scheduling=True)
    unit.add(request("a", prompt=10, output=9), 0.0)
    first = unit.begin_step(0.0)
    unit.add(request("b", prompt=6), 0.005)
    unit.finish_step(first.duration_s)
    second, outputs, now_s = step(unit, first.duration_s)
    third, _, _ = step(unit, now_s)

    assert (second.decode_requests, second.prefill_tokens) == (1, 0)
    assert [output.request_id for output in outputs] == ["a"]
    assert (third.decode_requests, third.prefill_tokens) == (1, 6)


def test_an_idle_engine_starts_an_arrival_at_once():
    unit = engine(async_scheduling=True)
    assert unit.begin_step(0.0) is None
    unit.add(request("a", prompt=10), 1.0)
    first, outputs, _ = step(unit, 1.0)
    assert (first.start_s, first.prefill_tokens, len(outputs)) == (1.0, 10, 1)


def test_a_freed_seat_stays_empty_for_one_step():
    seated = {}
    for ahead in (False, True):
        unit = engine(max_num_seqs=2, async_scheduling=ahead)
        for name, tokens in (("short", 2), ("long", 9), ("next", 1)):
            unit.add(request(name, prompt=4, output=tokens), 0.0)
        steps = []
        drain(unit, 0.0, lambda s, _o, steps=steps: steps.append(s))
        seated[ahead] = [index for index, s in enumerate(steps) if s.prefill_tokens]
    # "short" ends with the second step; the third was already composed when it did.
    assert seated == {False: [0, 2], True: [0, 3]}


def test_no_step_is_spent_on_a_request_whose_last_token_is_under_way():
    unit = engine(async_scheduling=True)
    unit.add(request("a", prompt=40, output=3), 0.0)
    steps = []
    drain(unit, 0.0, lambda s, _o: steps.append(s))
    # Two chunks, of which the second yields the first token, then two decodes.
    assert [s.prefill_tokens for s in steps] == [32, 8, 0, 0]
    assert [s.decode_kv_tokens for s in steps] == [0, 0, 40, 41]


def test_a_request_cancelled_after_its_step_was_composed_yields_nothing():
    unit = engine(async_scheduling=True)
    unit.add(request("a", prompt=4, output=5), 0.0)
    unit.add(request("b", prompt=4, output=5), 0.0)
    _, _, now_s = step(unit, 0.0)
    assert unit.cancel("a", now_s)
    _, outputs, now_s = step(unit, now_s)
    assert [output.request_id for output in outputs] == ["b"]
    drain(unit, now_s)
    assert unit.load().free_blocks == spec().num_blocks


@given(
    lengths=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 30)), min_size=1, max_size=12),
    blocks=st.integers(25, 64),
    reserve=st.booleans(),
)
def test_every_request_gets_its_tokens_and_every_block_comes_back(lengths, blocks, reserve):
    given_spec = spec(num_blocks=blocks, async_scheduling=True, reserve_prompt=reserve)
    unit = Engine(given_spec, COSTS)
    got = {str(index): 0 for index in range(len(lengths))}
    ended = []

    def count(_step, outputs):
        for output in outputs:
            got[output.request_id] += output.tokens
            ended.extend([output.request_id] if output.finish is FinishReason.LENGTH else [])

    for index, (prompt, tokens) in enumerate(lengths):
        unit.add(request(str(index), prompt, tokens), 0.0)
    drain(unit, 0.0, count)

    assert got == {str(index): tokens for index, (_, tokens) in enumerate(lengths)}
    assert sorted(ended) == sorted(got)
    assert unit.load().free_blocks == blocks


def test_a_prompt_that_must_fit_as_a_whole_waits_for_all_its_blocks():
    started = {}
    for reserve in (False, True):
        unit = engine(num_blocks=32, reserve_prompt=reserve)
        unit.add(request("first", prompt=30, output=30), 0.0)
        unit.add(request("whole", prompt=100), 0.0)
        steps = []
        drain(unit, 0.0, lambda s, _o, steps=steps: steps.append(s))
        # 100 tokens are 25 of 32 blocks; "first" holds 8 and more until it ends with step 30.
        started[reserve] = next(i for i, s in enumerate(steps) if s.prefill_tokens not in (30, 0))
    assert started == {False: 0, True: 30}
