# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.runtime.emulated.content import Answer, block_contents, damage

pytestmark = pytest.mark.unit

VOCABULARY = tuple(range(97, 123))
PROMPTS = st.lists(st.integers(0, 511), min_size=1, max_size=300)


def answer(prompt, count, block=16, kv_damage=0):
    stream = Answer(prompt, block, VOCABULARY, kv_damage)
    return [stream.next_token() for _ in range(count)]


@given(PROMPTS, st.integers(1, 80), st.data())
def test_a_stream_that_migrates_continues_with_the_same_tokens(prompt, count, data):
    whole = answer(prompt, count)
    cut = data.draw(st.integers(0, count - 1))
    assert answer(prompt + whole[:cut], count - cut) == whole[cut:]


@given(PROMPTS, PROMPTS)
def test_another_prompts_kv_gives_other_tokens(ours, theirs):
    expected, held = block_contents(ours, 16), block_contents(theirs, 16)
    wrong = damage(expected, held[: len(expected)])
    if wrong:
        assert answer(ours, 24, kv_damage=wrong) != answer(ours, 24)
    else:
        assert expected == held[: len(expected)]


def test_blocks_share_a_hash_only_with_their_whole_prefix():
    first = block_contents([1] * 16 + [2] * 16, 16)
    same_start = block_contents([1] * 16 + [3] * 16, 16)
    same_end = block_contents([9] * 16 + [2] * 16, 16)
    assert first[0] == same_start[0] and first[1] != same_start[1]
    assert first[1] != same_end[1]
    assert 0 not in first


def test_right_kv_is_no_damage():
    contents = block_contents(range(100), 16)
    assert damage(contents, contents) == 0
    assert damage(contents, (0, *contents[1:])) != 0
