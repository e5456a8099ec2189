# SPDX-License-Identifier: Apache-2.0
"""Both legs of a hand-over: pins, leases, stale readers, pulls."""

from __future__ import annotations

import pytest
from engine_kit import contents, drain, engine, good_pull, request, step

from controller.engine import DuplicateRequest, FinishReason, Output, Pull

pytestmark = pytest.mark.unit


def test_a_prefill_leg_ends_with_its_first_token_and_stays_pinned():
    unit = engine(kv_lease_s=30.0)
    unit.add(request("p", prompt=10, output=50, hold_kv=True), 0.0)
    _, outputs, now_s = step(unit, 0.0)
    assert outputs == [Output("p", 1, FinishReason.LENGTH, 0)]
    blocks = unit.pinned_blocks("p")
    assert blocks is not None
    assert unit.block_contents(blocks) == request("p", prompt=10).contents
    load = unit.load()
    assert (load.pinned_requests, load.pinned_blocks, load.free_blocks) == (1, 3, 61)
    assert load.running_requests == 0
    assert unit.next_wakeup_s() == pytest.approx(now_s + 30.0)
    with pytest.raises(DuplicateRequest):
        unit.add(request("p", prompt=4), now_s)

    assert not unit.cancel("p", now_s)
    assert unit.release("p", now_s)
    assert not unit.release("p", now_s)
    assert unit.pinned_blocks("p") is None
    assert (unit.load().pinned_blocks, unit.load().free_blocks) == (0, 64)


def test_four_unclaimed_prefills_fill_an_80_block_engine_until_a_lease_ends():
    # As in the field: 20 blocks each, the fifth prompt waits for the first lease.
    unit = engine(num_blocks=80, max_num_batched_tokens=200, kv_lease_s=30.0)
    now_s = 0.0
    for name in ("p1", "p2", "p3", "p4"):
        unit.add(request(name, prompt=80, hold_kv=True), now_s)
        now_s = drain(unit, now_s)
    assert unit.load().free_blocks == 0
    unit.add(request("p5", prompt=80, hold_kv=True), now_s)
    assert unit.begin_step(now_s) is None
    assert unit.load().waiting_requests == 1

    wake_s = unit.next_wakeup_s()
    assert wake_s is not None
    assert wake_s - now_s > 29.0
    assert unit.expire(wake_s - 0.001) == []
    assert unit.begin_step(wake_s - 0.001) is None
    assert unit.expire(wake_s) == ["p1"]
    _, outputs, _ = step(unit, wake_s)
    assert [o.request_id for o in outputs] == ["p5"]


def test_renewing_moves_the_end_of_the_lease():
    unit = engine(kv_lease_s=30.0)
    unit.add(request("p", prompt=4, hold_kv=True), 0.0)
    _, _, end_s = step(unit, 0.0)
    assert unit.renew("p", 20.0)
    assert unit.next_wakeup_s() == pytest.approx(50.0)
    assert unit.expire(end_s + 30.0) == []
    # Past its end a lease is gone, even if nobody has called expire yet.
    assert not unit.renew("p", 50.0)
    assert not unit.release("p", 50.0)
    assert unit.expire(50.0) == ["p"]
    assert not unit.renew("p", 50.0)
    assert unit.load().free_blocks == 64


def test_a_late_reader_sees_the_content_of_whoever_reused_the_blocks():
    unit = engine(num_blocks=4, kv_lease_s=30.0)
    unit.add(request("p", prompt=16, family=1, hold_kv=True), 0.0)
    drain(unit, 0.0)
    blocks = unit.pinned_blocks("p")
    assert blocks is not None
    unit.expire(100.0)
    # Freed but not reused: still right, which is why the mistake stays unseen for long.
    assert unit.block_contents(blocks) == contents(16, 4, 1)
    unit.add(request("other", prompt=16, family=2), 100.0)
    unit.begin_step(100.0)
    assert unit.block_contents(blocks) == (0, 0, 0, 0)
    unit.finish_step(101.0)
    stale = unit.block_contents(blocks)
    assert sorted(stale) == sorted(contents(16, 4, 2))
    assert not set(stale) & set(contents(16, 4, 1))


def test_cancelling_a_prefill_leg_before_its_end_pins_nothing():
    unit = engine()
    unit.add(request("p", prompt=40, hold_kv=True), 0.0)
    step(unit, 0.0)
    assert unit.cancel("p", 0.1)
    assert (unit.load().free_blocks, unit.load().pinned_requests) == (64, 0)


def test_pins_that_share_a_prefix_count_distinct_blocks():
    unit = engine()
    unit.add(request("p", prompt=13, family=1, hold_kv=True), 0.0)
    now_s = drain(unit, 0.0)
    unit.add(request("q", prompt=13, family=1, hold_kv=True), now_s)
    drain(unit, now_s)
    assert (unit.load().pinned_blocks, unit.load().free_blocks) == (5, 59)
    assert unit.release("p", now_s)
    assert (unit.load().pinned_blocks, unit.load().free_blocks) == (4, 60)


def test_a_decode_leg_pulls_then_decodes_without_a_prefill():
    unit = engine()
    leg = request("d", prompt=10, output=2, pull_kv=True)
    unit.add(leg, 0.0)
    assert unit.begin_step(0.0) is None
    assert unit.take_pulls() == [Pull("d", 0, 3, 10, pytest.approx(0.002 + 0.010))]
    assert unit.take_pulls() == []
    load = unit.load()
    assert (load.pulling_requests, load.running_requests, load.free_blocks) == (1, 0, 61)
    assert unit.begin_step(0.005) is None

    assert unit.finish_pull("d", leg.contents, 0.012) == []
    assert unit.finish_pull("d", leg.contents, 0.012) == []
    assert unit.prompt_contents("d") == leg.contents
    first, outputs, now_s = step(unit, 0.012)
    # The last prompt token counts as a decode on top of 9.
    assert (first.prefill_requests, first.decode_requests, first.decode_kv_tokens) == (0, 1, 9)
    assert first.duration_s == pytest.approx(0.010 + 0.001 + 0.00009)
    assert outputs == [Output("d", 1, None, 0)]
    second, outputs, _ = step(unit, now_s)
    assert second.decode_kv_tokens == 10
    assert outputs == [Output("d", 1, FinishReason.LENGTH, 0)]


def test_local_prefix_hits_shorten_the_pull():
    unit = engine()
    unit.add(request("before", prompt=8, family=1), 0.0)
    now_s = drain(unit, 0.0)
    leg = request("d", prompt=18, family=1, pull_kv=True)
    unit.add(leg, now_s)
    assert unit.begin_step(now_s) is None
    [pull] = unit.take_pulls()
    assert (pull.skip_blocks, pull.blocks, pull.tokens) == (2, 3, 10)
    assert pull.duration_s == pytest.approx(0.002 + 0.010)
    unit.finish_pull("d", good_pull(leg.contents, pull), now_s)
    _, outputs, _ = step(unit, now_s)
    assert outputs == [Output("d", 1, FinishReason.LENGTH, 8)]


@pytest.mark.parametrize(("prompt", "skip", "blocks", "tokens"), [(9, 2, 0, 0), (8, 1, 1, 4)])
def test_a_cached_prompt_pulls_nothing_if_only_its_last_token_is_missing(
    prompt: int, skip: int, blocks: int, tokens: int
):
    unit = engine()
    unit.add(request("before", prompt=8, family=1), 0.0)
    now_s = drain(unit, 0.0)
    leg = request("d", prompt=prompt, family=1, pull_kv=True)
    unit.add(leg, now_s)
    unit.begin_step(now_s)
    [pull] = unit.take_pulls()
    assert (pull.skip_blocks, pull.blocks, pull.tokens) == (skip, blocks, tokens)
    assert (pull.duration_s == 0.0) == (tokens == 0)
    unit.finish_pull("d", good_pull(leg.contents, pull), now_s)
    first, _, _ = step(unit, now_s)
    assert (first.decode_requests, first.decode_kv_tokens) == (1, prompt - 1)
    assert unit.prompt_contents("d") == leg.contents


def test_stale_content_comes_with_the_pull_and_poisons_the_prefix_cache():
    unit = engine()
    leg = request("d", prompt=9, family=1, output=1, pull_kv=True)
    unit.add(leg, 0.0)
    unit.begin_step(0.0)
    stale = (leg.contents[0], 77, leg.contents[2])
    unit.finish_pull("d", stale, 0.0)
    _, outputs, now_s = step(unit, 0.0)
    assert outputs[0].finish is FinishReason.LENGTH
    # Readable after the finish, until the next step begins.
    assert unit.prompt_contents("d") == stale
    # vLLM offers the wrong KV under the right hash: the next request gets it as a hit.
    unit.add(request("next", prompt=9, family=1, output=2), now_s)
    _, outputs, _ = step(unit, now_s)
    assert outputs[0].cached_tokens == 8
    assert unit.prompt_contents("next")[:2] == stale[:2]
    with pytest.raises(KeyError):
        unit.prompt_contents("d")


def test_a_last_block_with_only_the_last_token_is_computed_here():
    unit = engine()
    leg = request("d", prompt=5, output=2, pull_kv=True)
    unit.add(leg, 0.0)
    unit.begin_step(0.0)
    unit.finish_pull("d", (leg.contents[0], 77), 0.0)
    step(unit, 0.0)
    assert unit.prompt_contents("d") == leg.contents


def test_a_failed_pull_ends_the_request_and_frees_its_blocks():
    unit = engine()
    unit.add(request("d", prompt=10, pull_kv=True), 0.0)
    unit.begin_step(0.0)
    unit.take_pulls()
    assert unit.finish_pull("d", None, 0.1) == [Output("d", 0, FinishReason.KV_LOAD_FAILED, 0)]
    assert unit.finish_pull("d", None, 0.1) == []
    assert (unit.load().free_blocks, unit.load().pulling_requests) == (64, 0)
    assert unit.take_cache_events() == []


def test_a_cancelled_pull_is_withdrawn_and_its_end_ignored():
    unit = engine()
    leg = request("d", prompt=10, pull_kv=True)
    unit.add(leg, 0.0)
    unit.begin_step(0.0)
    assert unit.cancel("d", 0.0)
    assert unit.take_pulls() == []
    assert unit.finish_pull("d", leg.contents, 0.1) == []
    assert unit.load().free_blocks == 64


def test_a_pull_takes_a_seat_but_no_budget():
    unit = engine(max_num_seqs=2, max_num_batched_tokens=8)
    unit.add(request("d", prompt=100, pull_kv=True), 0.0)
    unit.add(request("a", prompt=8), 0.0)
    unit.add(request("b", prompt=4), 0.0)
    first, _, _ = step(unit, 0.0)
    assert (first.prefill_requests, first.prefill_tokens) == (1, 8)
    assert unit.load().waiting_requests == 1


def test_a_pull_must_bring_one_content_per_block():
    unit = engine()
    unit.add(request("d", prompt=10, pull_kv=True), 0.0)
    unit.begin_step(0.0)
    with pytest.raises(ValueError, match="1 contents for 3 blocks"):
        unit.finish_pull("d", (1,), 0.1)
    assert unit.load().pulling_requests == 1


def test_a_pull_that_ends_during_a_step_joins_the_next():
    unit = engine()
    leg = request("d", prompt=10, pull_kv=True)
    unit.add(request("a", prompt=4), 0.0)
    unit.add(leg, 0.0)
    running = unit.begin_step(0.0)
    assert running is not None
    unit.finish_pull("d", leg.contents, 0.001)
    assert [o.request_id for o in unit.finish_step(running.duration_s)] == ["a"]
    _, outputs, _ = step(unit, running.duration_s)
    assert [o.request_id for o in outputs] == ["d"]


def test_unknown_block_ids_are_refused():
    with pytest.raises(IndexError):
        engine(num_blocks=4).block_contents([4])
    with pytest.raises(IndexError):
        engine(num_blocks=4).block_contents([-1])
