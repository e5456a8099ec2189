# SPDX-License-Identifier: Apache-2.0
"""What the router knows about decode workers."""

import math

import pytest

from controller.runtime.router.decode_state import (
    DecodeState,
    EngineFacts,
    PassReport,
    expected_binding,
)
from controller.runtime.router.ports import engine_facts

pytestmark = pytest.mark.unit


def state(followed=True, ids=(1, 2)):
    made = DecodeState(10.0, budget_tokens=2048, followed=followed)
    made.sync(ids)
    return made


def test_reports_give_batch_context_and_a_window_that_empties():
    decode = state()
    decode.observe(PassReport(2, 0.02, 3, 600), 1.0)
    view = decode.view(5.0)
    assert (view.batch.tolist(), view.context_tokens.tolist()) == ([0, 3], [0, 600])
    assert math.isnan(view.itl_window_s[0]) and view.itl_window_s[1] == pytest.approx(0.02)
    assert math.isnan(decode.view(11.0).itl_window_s[1])


def test_a_view_keeps_what_it_saw():
    decode = state()
    before = decode.view(0.0)
    decode.observe(PassReport(1, 0.02, 3, 600), 1.0)
    decode.local_sent(1, "r", 1.0, 1.0)
    assert before.batch.tolist() == before.local_prefills.tolist() == [0, 0]
    assert before.queue_s.tolist() == [0.0, 0.0]


def test_local_prefills_are_worked_off_in_turn():
    decode = state()
    decode.local_sent(1, "a", 2.0, 0.0)
    decode.local_sent(1, "b", 1.0, 1.0)
    assert decode.view(1.5).queue_s.tolist() == [1.5, 0.0]
    assert decode.view(1.5).local_prefills.tolist() == [2, 0]
    decode.local_done("a")
    decode.local_done("a")
    decode.local_done("never heard of")
    assert decode.view(1.5).local_prefills.tolist() == [1, 0]
    assert decode.view(99.0).local_prefills.tolist() == [1, 0]  # until somebody says so


def test_where_nobody_follows_them_local_prefills_end_as_predicted():
    decode = state(followed=False)
    decode.local_sent(1, "a", 2.0, 0.0)
    assert decode.view(1.9).local_prefills.tolist() == [1, 0]
    assert decode.view(2.0).local_prefills.tolist() == [0, 0]


def test_who_stays_keeps_its_books_and_who_left_is_forgotten():
    decode = state()
    decode.observe(PassReport(2, 0.02, 3, 600), 1.0)
    decode.equip(2, EngineFacts(1000, 512, True))
    decode.local_sent(1, "r", 1.0, 1.0)
    decode.sync([3, 2])
    view = decode.view(1.0)
    assert view.worker_ids == (3, 2)
    assert (view.batch.tolist(), view.local_prefills.tolist()) == ([0, 3], [0, 0])
    assert (view.budget_tokens.tolist(), view.chunked.tolist()) == ([2048, 512], [False, True])
    assert decode.unknown() == [3]
    decode.local_done("r")


def test_streams_hold_their_context_also_before_discovery_shows_the_worker():
    decode = state(ids=(1,))
    decode.hold(7, 100)
    decode.sync([1, 7])
    decode.hold(7, 20)
    assert decode.view(0.0).held_tokens.tolist() == [0, 120]
    decode.observe(PassReport(7, 0.02, 1, 500), 0.0)  # another router's streams
    assert decode.view(0.0).held_tokens.tolist() == [0, 500]
    decode.hold(7, -120)
    decode.observe(PassReport(7, 0.02, 0, 0), 0.0)
    assert decode.view(0.0).held_tokens.tolist() == [0, 0]


def test_the_likely_binding_is_the_one_whose_local_prefills_end_first():
    decode = state(ids=(1, 2, 3))
    decode.observe(PassReport(2, 0.02, 1, 500), 0.0)
    decode.observe(PassReport(3, 0.02, 1, 400), 0.0)
    decode.local_sent(1, "r", 1.0, 0.0)
    assert expected_binding(decode.view(0.0)) == 2
    assert expected_binding(DecodeState(10.0).view(0.0)) is None


def test_an_engines_facts_come_from_its_card():
    card = {
        "kv_cache_block_size": 64,
        "runtime_config": {
            "total_kv_blocks": 100,
            "max_num_batched_tokens": 2048,
            "runtime_data": {"equilibrium_chunk_schedule": True},
        },
    }
    assert engine_facts(card) == EngineFacts(6400, 2048, True)
    assert engine_facts({"kv_cache_block_size": 16}) == EngineFacts(None, None, False)
