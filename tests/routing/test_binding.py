# SPDX-License-Identifier: Apache-2.0
"""Which decode worker is preferred: session, prefix, room, least context; and the prompt index."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.binding import Binder, Candidate
from controller.routing.prompts import BLOCK_TOKENS, PromptIndex, block_sums

pytestmark = pytest.mark.unit

IDLE = (Candidate(1, 0), Candidate(2, 0), Candidate(3, 0))


def choose(candidates, hits=None, prompt=1000, session=None, binder=None):
    return (binder or Binder(Random(1))).choose(session, candidates, hits or {}, prompt)


def test_a_session_comes_before_a_longer_prefix_elsewhere():
    binder = Binder(Random(1))
    binder.note("s", 2)
    bound = choose(IDLE, {3: 640}, session="s", binder=binder)
    assert (bound.worker_id, bound.fresh) == (2, False)


def test_the_longest_prefix_comes_before_the_least_context():
    workers = (Candidate(1, 0), Candidate(2, 500), Candidate(3, 500))
    bound = choose(workers, {2: 640, 3: 576})
    assert (bound.worker_id, bound.fresh) == (2, False)


def test_a_prefix_is_followed_only_while_it_pays():
    # The least busy one has 0 tokens, near-ties reach to 256; 640 saved are worth 640 more.
    for context, expected in ((896, 2), (897, 1)):
        bound = choose((Candidate(1, 0), Candidate(2, context)), {2: 640})
        assert bound.worker_id == expected
        assert bound.fresh is (expected == 1)


def test_a_worker_without_room_for_the_prompt_is_left_out():
    workers = (Candidate(1, 0, room=359), Candidate(2, 5000, room=2000))
    assert choose(workers).worker_id == 2
    # 640 of the 1,000 tokens are there already: 360 more are needed.
    assert choose(workers, {1: 640}).worker_id == 2
    assert choose((Candidate(1, 0, room=360), workers[1]), {1: 640}).worker_id == 1
    # No room anywhere: the least context all the same.
    assert choose((Candidate(1, 0, room=9), Candidate(2, 5000, room=9))).worker_id == 1


def test_equal_prefixes_are_drawn():
    binder = Binder(Random(3))
    seen = Counter(
        choose(IDLE, {1: 640, 2: 640, 3: 64}, binder=binder).worker_id for _ in range(200)
    )
    assert set(seen) == {1, 2} and min(seen.values()) > 60


def test_forgotten_sessions_are_counted():
    binder = Binder(Random(1), capacity=2)
    for session in "abc":
        binder.note(session, 1)
    assert binder.evicted == 1


def tokens(blocks, start=0):
    return list(range(start, start + blocks * BLOCK_TOKENS))


def test_the_index_knows_the_longest_prefix_by_worker():
    index = PromptIndex()
    index.note(1, block_sums(tokens(4)))
    index.note(2, block_sums([*tokens(2), *tokens(2, start=9000)]))
    assert index.hits(block_sums([*tokens(3), 5])) == {1: 192, 2: 128}
    assert index.hits(block_sums(tokens(3, start=1))) == {}
    assert index.hits(block_sums([])) == {}


def test_the_index_is_bounded_and_forgets_tails_and_old_prompts_first():
    index = PromptIndex(blocks_a_worker=5)
    index.note(1, block_sums(tokens(3)))
    index.note(1, block_sums(tokens(4, start=9000)))
    assert (len(index), index.evicted) == (5, 2)
    assert index.hits(block_sums(tokens(3))) == {1: 64}
    assert index.hits(block_sums(tokens(4, start=9000))) == {1: 256}


def test_a_worker_that_left_is_forgotten():
    index = PromptIndex()
    index.note(1, block_sums(tokens(4)))
    index.forget_all_but((2,))
    assert index.hits(block_sums(tokens(4))) == {} and len(index) == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(0, 3)), max_size=30))
def test_a_hit_is_a_prefix_that_was_noted_there(notes):
    index, noted = PromptIndex(blocks_a_worker=8), {}
    for worker, blocks, start in notes:
        prompt = block_sums(tokens(blocks, start=1000 * start))
        index.note(worker, prompt)
        noted.setdefault(worker, []).append(list(prompt))
    for start in range(4):
        asked = list(block_sums(tokens(7, start=1000 * start)))
        for worker, hit in index.hits(asked).items():
            head = asked[: hit // BLOCK_TOKENS]
            assert any(prompt[: len(head)] == head for prompt in noted[worker])
    assert all(len(known) <= 8 for known in index._known.values())
