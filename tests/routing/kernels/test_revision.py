# SPDX-License-Identifier: Apache-2.0
"""Who of those that wait may choose again, worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_kit import Queue

from controller.routing.kernels.orderings import ORDERINGS

pytestmark = pytest.mark.unit


def asked(queue, now_s):
    """Numbers of the tasks that are asked at one instant, each put back where it was."""
    found = []
    while (row := queue.waiting.ask_next(queue.lane, now_s)) >= 0:
        found.append(queue.rows.index(row))
        task = queue.waiting.tasks[row]
        queue.waiting.move(queue.lane, row, 1, float(task["predicted_s"]), now_s)
    return found


def test_who_is_expected_in_time_is_not_asked():
    # First come, first served from 1 s on: ends at 2, 4 and 5 s.
    queue = Queue("fifo", [(1.0, 2.5), (2.0, 3.5), (1.0, 6.0)])
    assert asked(queue, 1.0) == [1]


def test_whom_the_ordering_passes_over_is_asked_and_the_others_count_without_it():
    # Moore-Hodgson drops the long one; the two others end at 2 and 3 s.
    queue = Queue("moore_hodgson", [(5.0, 6.5), (1.0, 2.5), (1.0, 3.5)])
    assert asked(queue, 1.0) == [0]


def test_each_is_asked_once_an_instant_and_not_when_it_has_just_come():
    queue = Queue("fifo", [{"time_s": 9.0, "due_s": 1.0, "arrival_s": 3.0}])
    assert asked(queue, 3.0) == []
    assert asked(queue, 3.1) == [0]
    assert asked(queue, 3.1) == []
    assert asked(queue, 3.2) == [0]


@given(
    rule=st.sampled_from([name for name in ORDERINGS if name != "algorithm_2"]),
    tasks=st.lists(st.tuples(st.floats(0.1, 2), st.floats(0, 6)), max_size=8),
)
def test_nobody_is_asked_twice_and_asking_loses_nobody(rule, tasks):
    queue = Queue(rule, tasks)
    found = asked(queue, 1.0)
    assert len(set(found)) == len(found)
    assert sorted(queue.drain(1.0)) == list(range(len(tasks)))


@given(tasks=st.lists(st.tuples(st.floats(0.1, 2), st.floats(0, 6)), max_size=8))
def test_the_order_of_those_who_stay_is_kept(tasks):
    queue, same = Queue("fifo", tasks), Queue("fifo", tasks)
    asked(queue, 1.0)
    assert queue.drain(1.0) == same.drain(1.0)
