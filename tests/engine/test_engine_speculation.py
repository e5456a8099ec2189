# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: steps that bring a request several tokens."""

from __future__ import annotations

import pytest
from engine_kit import COSTS, drain, engine, request, spec
from hypothesis import given
from hypothesis import strategies as st

from controller.engine import Engine, RequestTooLarge

pytestmark = pytest.mark.unit


def outputs_by_step(unit: Engine) -> list[dict[str, int]]:
    steps: list[dict[str, int]] = []
    drain(unit, 0.0, lambda _s, outputs: steps.append({o.request_id: o.tokens for o in outputs}))
    return steps


def test_steps_bring_the_mean_in_whole_tokens_and_no_more_than_was_asked():
    unit = engine(verified_tokens=4, emitted_tokens=2.5)
    unit.add(request("a", prompt=4, output=10), 0.0)
    # The prefill brings one; then 2, 3, 2, and of the last three drafts that stay two are needed.
    assert [step["a"] for step in outputs_by_step(unit)] == [1, 2, 3, 2, 2]


def test_a_decode_takes_its_drafts_out_of_the_budget():
    unit = engine(verified_tokens=4, emitted_tokens=2.0, max_num_batched_tokens=16)
    for name in ("a", "b"):
        unit.add(request(name, prompt=4, output=9), 0.0)
    unit.begin_step(0.0)
    unit.finish_step(0.1)
    unit.add(request("c", prompt=40), 0.1)
    step = unit.begin_step(0.1)
    assert (step.decode_requests, step.prefill_tokens) == (2, 16 - 2 * 4)


def test_blocks_are_taken_for_the_tokens_that_stay():
    unit = engine(verified_tokens=8, emitted_tokens=3.0, num_blocks=32)
    unit.add(request("a", prompt=4, output=20), 0.0)
    free = []
    drain(unit, 0.0, lambda _s, _o: free.append(32 - unit.load().free_blocks))
    # 4, 7, 10, 13, ... tokens in blocks of 4; none when it ends.
    assert free[:4] == [1, 2, 3, 4] and free[-1] == 0


def test_room_for_drafts_past_the_last_token_is_part_of_what_a_request_needs():
    kept = {"num_blocks": 4, "watermark_blocks": 0}
    engine(**kept).add(request("a", prompt=12, output=5), 0.0)
    with pytest.raises(RequestTooLarge, match="needs 5 KV blocks"):
        engine(**kept, verified_tokens=4, emitted_tokens=4.0).add(
            request("a", prompt=12, output=5), 0.0
        )


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=10),
    blocks=st.integers(26, 64),
    emitted=st.sampled_from([1.0, 1.3, 2.5, 4.0]),
    ahead=st.booleans(),
)
def test_every_request_gets_its_tokens_and_every_block_comes_back(lengths, blocks, emitted, ahead):
    settings = spec(
        num_blocks=blocks, verified_tokens=4, emitted_tokens=emitted, async_scheduling=ahead
    )
    unit = Engine(settings, COSTS)
    for index, (prompt, tokens) in enumerate(lengths):
        unit.add(request(str(index), prompt, tokens), 0.0)
    got = dict.fromkeys(map(str, range(len(lengths))), 0)
    for step in outputs_by_step(unit):
        for name, tokens in step.items():
            got[name] += tokens
    assert list(got.values()) == [tokens for _, tokens in lengths]
    assert unit.load().free_blocks == blocks
