# SPDX-License-Identifier: Apache-2.0
"""Running out of blocks: who gives way, what is recomputed, when a request just waits."""

from __future__ import annotations

from collections import Counter

import pytest
from engine_kit import drain, engine, request, step

pytestmark = pytest.mark.unit


def test_the_most_recent_gives_way_and_delivers_nothing_twice():
    unit = engine(num_blocks=4, prefix_cache=False)
    unit.add(request("old", prompt=7, output=6), 0.0)  # 12 tokens of KV: 3 blocks
    unit.add(request("new", prompt=7, output=6), 0.0)
    tokens: Counter[str] = Counter()
    _, outputs, now_s = step(unit, 0.0)
    assert len(outputs) == 2
    _, outputs, now_s = step(unit, now_s)  # both fill their second block
    assert len(outputs) == 2
    tokens.update(old=2, new=2)

    third, outputs, now_s = step(unit, now_s)
    assert (third.decode_requests, [o.request_id for o in outputs]) == (1, ["old"])
    tokens["old"] += 1
    load = unit.load()
    assert (load.preemptions_total, load.preempted_requests, load.preempted_kv_tokens) == (1, 1, 9)
    assert (load.waiting_requests, load.decoding_requests, load.decode_kv_tokens) == (0, 1, 9)

    recomputed: list[int] = []

    def seen(running, out):
        recomputed.append(running.prefill_tokens)
        tokens.update(o.request_id for o in out)

    drain(unit, now_s, seen)
    assert tokens == {"old": 6, "new": 6}
    # 7 prompt and 2 generated tokens, in one chunk.
    assert sum(recomputed) == 9
    assert unit.load().free_blocks == 4


def test_the_preempted_goes_to_the_front():
    unit = engine(num_blocks=4, prefix_cache=False)
    unit.add(request("old", prompt=7, output=6), 0.0)
    unit.add(request("new", prompt=7, output=6), 0.0)
    _, _, now_s = step(unit, 0.0)
    unit.add(request("later", prompt=4), now_s)
    _, _, now_s = step(unit, now_s)
    order: list[str] = []
    drain(unit, now_s, lambda _s, out: order.extend(o.request_id for o in out))
    # "later" would have fitted long before: it needs one block, "new" three.
    assert unit.load().preemptions_total == 1
    assert order.index("old") < order.index("new") < order.index("later")


def test_recompute_finds_its_own_blocks_and_does_not_count_as_a_hit():
    unit = engine(num_blocks=6)
    unit.add(request("old", prompt=8, output=9), 0.0)
    unit.add(request("new", prompt=8, output=9), 0.0)
    chunks: list[tuple[int, int]] = []

    def seen(running, _out):
        if running.prefill_requests:
            chunks.append((running.prefill_tokens, running.prefill_kv_tokens))

    drain(unit, 0.0, seen)
    assert unit.load().preemptions_total == 1
    assert chunks[0] == (16, 0)
    assert chunks[1][1] > 0
    assert unit.load().prefix_hit_tokens_total == 0
    assert unit.load().prefix_query_tokens_total == 16


def test_the_latest_is_its_own_victim():
    unit = engine(num_blocks=10, prefix_cache=False)
    unit.add(request("old", prompt=16, output=9), 0.0)  # 24 tokens of KV: 6 blocks
    _, _, now_s = step(unit, 0.0)
    unit.add(request("new", prompt=36), now_s)
    first, _, now_s = step(unit, now_s)
    # 31 tokens would need 8 blocks, 5 are free beside the decode: it does not even start.
    assert (first.prefill_requests, unit.load().preemptions_total) == (0, 0)
    unit.cancel("new", now_s)

    unit = engine(num_blocks=10, max_num_batched_tokens=8, prefix_cache=False)
    unit.add(request("old", prompt=8, output=17), 0.0)  # 24 tokens of KV: 6 blocks
    unit.add(request("new", prompt=36), 0.0)
    chunks: list[int] = []
    tokens: Counter[str] = Counter()

    def seen(running, out):
        chunks.append(running.prefill_tokens)
        tokens.update(o.request_id for o in out)

    drain(unit, 0.0, seen)
    # Chunks of 7 beside the decode: it starts, lacks blocks, and goes back to waiting.
    assert unit.load().preemptions_total > 0
    assert sum(chunks) > 8 + 36
    assert tokens == {"old": 17, "new": 1}


def test_alone_behind_pins_it_waits_and_lets_nobody_past():
    unit = engine(num_blocks=6, kv_lease_s=30.0)
    unit.add(request("alone", prompt=7, output=9), 0.0)
    unit.add(request("pinned", prompt=16, hold_kv=True), 0.0)
    outputs = []
    now_s = drain(unit, 0.0, lambda _s, out: outputs.extend(out))
    # Its two blocks are full at 8 tokens of KV, the pins hold the other four.
    assert sum(o.tokens for o in outputs if o.request_id == "alone") == 2
    unit.add(request("small", prompt=1), now_s)
    assert unit.begin_step(now_s) is None
    assert unit.load().preemptions_total == 0

    assert unit.release("pinned", now_s)
    drain(unit, now_s, lambda _s, out: outputs.extend(out))
    assert sum(o.tokens for o in outputs if o.request_id == "alone") == 9
    assert unit.load().free_blocks == 6


def test_a_preempted_decode_leg_recomputes_locally():
    unit = engine(num_blocks=4, prefix_cache=False)
    leg = request("d", prompt=7, output=6, pull_kv=True)
    unit.add(request("old", prompt=7, output=6), 0.0)
    unit.add(leg, 0.0)
    running = unit.begin_step(0.0)
    assert running is not None
    unit.take_pulls()
    unit.finish_pull("d", leg.contents, 0.001)
    tokens = Counter(o.request_id for o in unit.finish_step(running.duration_s))
    recomputed: list[int] = []

    def seen(running, out):
        recomputed.append(running.prefill_tokens)
        tokens.update(o.request_id for o in out)

    drain(unit, running.duration_s, seen)
    assert unit.load().preemptions_total == 1
    assert sum(recomputed) >= 7
    assert unit.take_pulls() == []
    assert tokens == {"old": 6, "d": 6}


def test_a_step_that_preempts_admits_nobody():
    unit = engine(num_blocks=4, prefix_cache=False)
    unit.add(request("old", prompt=7, output=6), 0.0)
    unit.add(request("new", prompt=7, output=6), 0.0)
    _, _, now_s = step(unit, 0.0)
    _, _, now_s = step(unit, now_s)
    unit.add(request("urgent", prompt=4, priority=-1), now_s)
    preempting, _, now_s = step(unit, now_s)
    assert unit.load().preemptions_total == 1
    # One block is free, but newcomers would only bring on the next preemption.
    assert (preempting.prefill_requests, unit.load().free_blocks) == (0, 1)
    _, outputs, _ = step(unit, now_s)
    assert [o.request_id for o in outputs] == ["old", "urgent"]
