# SPDX-License-Identifier: Apache-2.0
"""Prefix hits, eviction and the events about them."""

from __future__ import annotations

import pytest
from engine_kit import contents, drain, engine, request, step

pytestmark = pytest.mark.unit


def test_a_shared_prefix_is_not_computed_again():
    unit = engine()
    unit.add(request("a", prompt=12, family=1), 0.0)
    now_s = drain(unit, 0.0)
    unit.add(request("b", prompt=20, family=1), now_s)
    second, outputs, _ = step(unit, now_s)
    assert (second.prefill_tokens, second.prefill_kv_tokens) == (8, 12)
    assert outputs[0].cached_tokens == 12
    # 8 tokens, 8 * (12 + 4) pairs
    assert second.duration_s == pytest.approx(0.010 + 0.0008 + 0.000128)
    load = unit.load()
    assert (load.prefix_hit_tokens_total, load.prefix_query_tokens_total) == (12, 32)


@pytest.mark.parametrize(("prompt", "cached"), [(12, 8), (13, 12), (15, 12), (3, 0), (4, 0)])
def test_a_fully_cached_prompt_still_computes_its_end(prompt: int, cached: int):
    unit = engine()
    unit.add(request("a", prompt=prompt, family=1), 0.0)
    now_s = drain(unit, 0.0)
    unit.add(request("again", prompt=prompt, family=1), now_s)
    again, outputs, _ = step(unit, now_s)
    # Whole blocks only, and never the last token: a prompt of whole blocks redoes the last one.
    assert (again.prefill_tokens, outputs[0].cached_tokens) == (prompt - cached, cached)


def test_nothing_is_found_before_the_step_that_computes_it_has_ended():
    unit = engine()
    unit.add(request("a", prompt=12, family=1), 0.0)
    unit.add(request("b", prompt=12, family=1), 0.0)
    first, outputs, _ = step(unit, 0.0)
    assert first.prefill_tokens == 24
    assert [o.cached_tokens for o in outputs] == [0, 0]


def test_without_prefix_cache_nothing_is_found_or_told():
    unit = engine(prefix_cache=False)
    for _ in range(2):
        unit.add(request("a", prompt=12, family=1), 0.0)
        first, outputs, _ = step(unit, 0.0)
        assert (first.prefill_tokens, outputs[0].cached_tokens) == (12, 0)
    assert unit.take_cache_events() == []


def test_stored_events_name_block_parent_and_index_and_leave_out_the_partial_block():
    unit = engine()
    unit.add(request("a", prompt=10, family=1), 0.0)
    drain(unit, 0.0)
    chain = contents(10, 4, 1)
    events = unit.take_cache_events()
    assert [(e.stored, e.content, e.parent, e.index, e.request_id) for e in events] == [
        (True, chain[0], None, 0, "a"),
        (True, chain[1], chain[0], 1, "a"),
    ]
    assert unit.take_cache_events() == []
    unit.add(request("b", prompt=10, family=1), 0.0)
    drain(unit, 0.0)
    assert unit.take_cache_events() == []


def test_eviction_takes_the_least_recently_used_and_a_prompts_tail_first():
    unit = engine(num_blocks=4)
    unit.add(request("a", prompt=8, family=1), 0.0)
    drain(unit, 0.0)
    unit.add(request("b", prompt=8, family=2), 0.0)
    drain(unit, 0.0)
    unit.take_cache_events()
    unit.add(request("c", prompt=3, family=3), 0.0)
    drain(unit, 0.0)
    a = contents(8, 4, 1)
    assert [(e.stored, e.content) for e in unit.take_cache_events()] == [(False, a[1])]
    unit.add(request("a-again", prompt=9, family=1), 0.0)
    _, outputs, _ = step(unit, 0.0)
    assert outputs[0].cached_tokens == 4


def test_a_content_is_removed_only_with_its_last_copy():
    unit = engine(num_blocks=4)
    unit.add(request("a", prompt=4, family=1, output=9), 0.0)
    unit.add(request("b", prompt=4, family=1), 0.0)
    _, _, now_s = step(unit, 0.0)
    assert [e.stored for e in unit.take_cache_events()] == [True]
    # b's copy lies free: c's two blocks and a's next one evict it; a's own stays in use.
    unit.add(request("c", prompt=8, family=3), now_s)
    step(unit, now_s)
    assert [e.stored for e in unit.take_cache_events()] == [True, True]
    unit.cancel("a", 1.0)
    unit.add(request("d", prompt=16, family=4), 1.0)
    unit.begin_step(1.0)
    c = contents(8, 4, 3)
    removed = [(e.stored, e.content) for e in unit.take_cache_events()]
    assert removed == [(False, c[1]), (False, c[0]), (False, contents(4, 4, 1)[0])]


def test_shared_blocks_are_counted_once():
    unit = engine(num_blocks=8)
    unit.add(request("a", prompt=13, output=3, family=1), 0.0)
    _, _, now_s = step(unit, 0.0)
    unit.add(request("b", prompt=13, output=3, family=1), now_s)
    _, _, now_s = step(unit, now_s)
    assert unit.load().free_blocks == 8 - 5
    drain(unit, now_s)
    assert unit.load().free_blocks == 8
