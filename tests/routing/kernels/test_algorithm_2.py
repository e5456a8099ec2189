# SPDX-License-Identifier: Apache-2.0
"""AMPD's Algorithm 2, worked by hand and against enumeration."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_kit import Queue, on_time

from controller.routing.kernels.algorithm_2 import next_permutation

pytestmark = pytest.mark.unit

WHOLE = st.integers(1, 12).map(float)


def test_a_short_task_goes_first_when_that_saves_one_more():
    # FIFO: C = 3, 4, 5; due 4, 2, 9: tasks 0 and 2 in time, 2 of 3 (Eq. 4).
    # (1, 0, 2): C = 1, 4, 5: all three.
    assert Queue("algorithm_2", [(3, 4), (1, 2), (1, 9)]).drain() == [1, 0, 2]


def test_ties_stay_first_come_first_served():
    # Every order of these has all three in time.
    assert Queue("algorithm_2", [(1, 9), (1, 8), (1, 7)]).drain() == [0, 1, 2]


def test_the_first_of_the_best_permutations_wins():
    # One of the three can be in time: due 1 each. FIFO has one; so it stays, though (1, 0, 2) too.
    assert Queue("algorithm_2", [(1, 1), (1, 1), (1, 1)]).send() == 0


def test_only_the_first_w_tasks_are_looked_at():
    tasks = [(3, 2), (3, 2), (1, 1)]
    assert Queue("algorithm_2", tasks, window=2).send() == 0
    assert Queue("algorithm_2", tasks, window=3).send() == 2


def test_whoever_is_put_back_is_counted_and_the_queue_keeps_the_new_order():
    queue = Queue("algorithm_2", [(3, 4), (1, 2), (1, 9), (1, 9)])
    assert queue.send() == 1
    assert [queue.task(i).postponed for i in range(4)] == [1, 0, 0, 0]
    assert queue.drain(1.0) == [0, 2, 3]


def test_a_task_at_its_cap_is_not_put_back_again():
    # As the first case, but task 0 was postponed w = 3 times: FIFO stays, though it saves fewer.
    queue = Queue("algorithm_2", [{"time_s": 3, "due_s": 4, "postponed": 3}, (1, 2), (1, 9)])
    assert queue.send() == 0


def test_the_clock_counts_what_was_waited_already():
    # now = 5: C from now on gives ends 8, 9, 10; due 9, 7, 14: task 1 first saves all three.
    assert Queue("algorithm_2", [(3, 9), (1, 7), (1, 14)]).send(5.0) == 1


@given(st.integers(1, 5))
def test_permutations_come_in_lexicographic_order(n):
    p = np.arange(n)
    seen = [tuple(p)]
    while next_permutation(p):
        seen.append(tuple(p))
    assert seen == list(permutations(range(n)))


@given(st.lists(st.tuples(WHOLE, WHOLE, st.integers(0, 4)), min_size=1, max_size=5))
def test_it_is_the_best_permutation_that_keeps_all_caps(drawn):
    tasks = [(time_s, due_s) for time_s, due_s, _ in drawn]
    counts = [n for _, _, n in drawn]
    w = len(tasks)

    def keeps(order) -> bool:
        return all(place <= i or counts[i] < w for place, i in enumerate(order))

    orders = [order for order in permutations(range(w)) if keeps(order)]
    most = max(on_time(tasks, order) for order in orders)
    expected = next(order for order in orders if on_time(tasks, order) == most)
    fields = [
        {"time_s": t, "due_s": d, "postponed": n} for (t, d), n in zip(tasks, counts, strict=True)
    ]
    queue = Queue("algorithm_2", fields, window=w)
    assert queue.send() == expected[0]
    put_back = [place > i for place, i in enumerate(expected)]
    for place, i in enumerate(expected):
        assert queue.task(i).postponed == counts[i] + put_back[place]
