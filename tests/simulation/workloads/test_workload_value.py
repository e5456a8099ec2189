# SPDX-License-Identifier: Apache-2.0
"""The invariants of a workload and the identity of its blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.simulation.traces import TraceError
from controller.simulation.workloads.rows import Heads, conversations, single_rounds, template_heads
from controller.simulation.workloads.workload import Workload, engine_block_ids, validate

pytestmark = pytest.mark.unit


def talk() -> Workload:
    """Session 0: three rounds from 1 s on; session 1: one round at 2 s, sharing one block of 32."""
    return conversations(
        "talk",
        np.array([1.0, 2.0]),
        np.array([3, 1]),
        np.array([40, 10, 5, 70]),
        np.array([7, 8, 9, 3]),
        np.array([9.0, 0.5, 0.0, 9.0]),
        heads=Heads(32, np.array([0, 1, 0, 2]), np.array([0, 2, 4])),
    )


def test_later_rounds_bring_the_history_and_follow_their_predecessor() -> None:
    w = talk()
    assert w.prompt_tokens.tolist() == [40, 57, 70, 70]
    assert w.history_tokens.tolist() == [0, 47, 65, 0]
    assert w.new_tokens.tolist() == [40, 10, 5, 70]
    assert w.after.tolist() == [-1, 0, 1, -1]
    assert w.followers.tolist() == [1, 2, -1, -1]
    assert w.heads.tolist() == [0, 0, 0, 3]
    assert w.think_s.tolist() == [0, 0.5, 0, 0]
    assert np.isnan(w.arrival_s).tolist() == [False, True, True, False]


def test_blocks_full_within_the_first_prompt_are_shared_and_the_rest_is_private() -> None:
    w = talk()
    first, second, other = (engine_block_ids(w, row, 16).tolist() for row in (0, 1, 3))
    # 40 tokens have two full blocks of 16, both inside the shared block of 32.
    assert first == other[:2]
    assert second[:2] == first
    # Block 2 holds the answer, so it is the session's own although id 1 names its tokens.
    assert second[2] < 0
    assert other[2] >= 0
    assert len(other) == 4


def test_blocks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(TraceError, match="blocks of 12 tokens do not divide"):
        engine_block_ids(talk(), 0, 12)
    with pytest.raises(TraceError, match="blocks of 64 tokens do not divide"):
        engine_block_ids(talk(), 0, 64)


ROUNDS = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 90)), min_size=1, max_size=4)


@given(st.lists(ROUNDS, min_size=1, max_size=4), st.integers(0, 150), st.sampled_from([1, 4, 16]))
def test_equal_block_identity_means_equal_text(
    sessions: list[list[tuple[int, int]]], shared: int, block: int
) -> None:
    """The text is written out token by token: blocks are equal exactly where prefixes are."""
    flat = [each for rounds in sessions for each in rounds]
    template = np.zeros(len(sessions), np.int64)
    lengths = np.array([rounds[0][0] for rounds in sessions])
    w = conversations(
        "t",
        np.arange(len(sessions), dtype=float),
        np.array([len(rounds) for rounds in sessions]),
        np.array([new for new, _ in flat]),
        np.array([output for _, output in flat]),
        np.zeros(len(flat)),
        heads=template_heads(template, np.array([min(shared, int(lengths.min()))]), 16),
    )
    common = min(shared, int(lengths.min())) // 16 * 16

    def text(row: int) -> list[tuple[int, int]]:
        stream = int(w.stream[row])
        return [(-1 if at < common else stream, at) for at in range(int(w.prompt_tokens[row]))]

    seen: dict[int, tuple[tuple[int, int], ...]] = {}
    for row in range(len(w)):
        written = text(row)
        for position, identity in enumerate(engine_block_ids(w, row, block).tolist()):
            prefix = tuple(written[: (position + 1) * block])
            assert seen.setdefault(identity, prefix) == prefix
    assert len(set(seen.values())) == len(seen)


WRONG = {
    "after itself": ({"after": np.array([-1, 1, 1, -1])}, "request 1: after names no earlier row"),
    "after twice": ({"after": np.array([-1, 0, 0, -1])}, "request 1: after names a row that"),
    "no time": ({"arrival_s": np.array([np.inf, np.nan, np.nan, 2])}, "request 0: arrival_s is no"),
    "early": ({"arrival_s": np.array([1, np.nan, np.nan, -2])}, "request 3: arrival_s is no time"),
    "both": ({"arrival_s": np.array([1, 1.5, np.nan, 2])}, "request 1: arrival_s of a follower"),
    "unsorted": ({"arrival_s": np.array([3, np.nan, np.nan, 2])}, "request 3: arrival_s is before"),
    "pause": ({"think_s": np.array([0, np.nan, 0, 0])}, "request 1: think_s is no time"),
    "first pause": ({"think_s": np.array([0, 0, 0, 1.0])}, "request 3: think_s needs a predeces"),
    "no answer": ({"output_tokens": np.array([7, 8, 0, 3])}, "request 2: output_tokens is below 1"),
    "no prompt": (
        {"prompt_tokens": np.array([0, 57, 70, 70])},
        "request 0: prompt_tokens is below",
    ),
    "short": ({"prompt_tokens": np.array([40, 47, 70, 70])}, "request 1: prompt_tokens does not"),
    "session": ({"session": np.array([0, 0, 0, 4])}, "request 3: session or stream is not in"),
    "tenant": ({"tenant": np.array([0, -1, 0, 0])}, "request 1: round or tenant is negative"),
    "ids": ({"block_starts": np.array([0, 3, 3, 3, 4])}, "request 0: more block ids than"),
    "late ids": ({"block_starts": np.array([0, 1, 2, 2, 4])}, "request 1: a later round of a str"),
    "gap": ({"block_ids": np.array([0, 1, 0, 3])}, "block_ids are not numbered from 0"),
    "span": ({"block_starts": np.array([0, 2, 2, 2, 3])}, "block_starts does not span block_ids"),
    "shape": ({"round": np.zeros(3, np.int64)}, "round has shape (3,), not (4,)"),
    "block": ({"block_tokens": 0}, "block_tokens is 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_named_in_one_line(case: str) -> None:
    columns, message = WRONG[case]
    with pytest.raises(TraceError) as caught:
        validate(replace(talk(), **columns))
    assert str(caught.value).startswith(f"talk: {message}")
    assert "\n" not in str(caught.value)


def test_an_empty_workload_is_refused() -> None:
    nothing = np.zeros(0)
    with pytest.raises(TraceError, match="none: no request"):
        single_rounds("none", nothing, nothing.astype(np.int64), nothing.astype(np.int64))


def test_rows_follow_arrival_whatever_order_they_are_given_in() -> None:
    w = conversations(
        "t",
        np.array([5.0, 1.0]),
        np.array([1, 2]),
        np.array([50, 10, 20]),
        np.array([5, 1, 2]),
        np.array([0.0, 0.0, 3.0]),
        tenant=np.array([7, 8]),
        heads=Heads(16, np.array([0, 1, 2, 3]), np.array([0, 3, 4])),
    )
    assert w.prompt_tokens.tolist() == [10, 31, 50]
    assert w.tenant.tolist() == [8, 8, 7]
    assert np.diff(w.block_starts).tolist() == [1, 0, 3]
    assert w.block_ids.tolist() == [3, 0, 1, 2]


def test_templates_share_full_blocks_and_only_those() -> None:
    heads = template_heads(np.array([2, -1, 0, 2]), np.array([40, 99, 33]), 16)
    assert np.diff(heads.starts).tolist() == [2, 0, 2, 2]
    assert heads.ids.tolist() == [2, 3, 0, 1, 2, 3]
