# SPDX-License-Identifier: Apache-2.0
"""Who is sent next: hopeless tasks step aside, and late work is not forgotten."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_kit import Queue

pytestmark = pytest.mark.unit


def test_what_cannot_be_in_time_lets_the_others_pass():
    # Task 0 needs 5 s and is due at 4; tasks 1 and 2 can be in time.
    assert Queue("hopeless_last", [(5, 4), (1, 9), (1, 9)]).drain() == [1, 2, 0]


def test_hopeless_last_keeps_the_order_of_arrival_and_earliest_deadline_does_not():
    tasks = [(1, 30), (1, 20), (1, 10)]
    assert Queue("hopeless_last", tasks).drain() == [0, 1, 2]
    assert Queue("earliest_deadline", tasks).drain() == [2, 1, 0]


def test_a_later_start_makes_more_tasks_hopeless():
    queue = Queue("hopeless_last", [(1, 3), (1, 9)])
    assert queue.look(0.0, 0.0) == 0
    assert queue.look(0.0, 2.5) == 1


def test_nobody_in_time_means_the_oldest_first():
    assert Queue("earliest_deadline", [(5, 4), (5, 3), (5, 2)]).send() == 0


def test_the_shortest_first_is_dynamos_wspt_with_equal_weights():
    assert Queue("shortest", [(3, 9), (1, 9), (2, 9)]).drain() == [1, 2, 0]


def test_a_strict_priority_goes_before_all_rules():
    for rule in ("fifo", "hopeless_last", "earliest_deadline", "shortest"):
        queue = Queue(rule, [(1, 5), {"time_s": 2, "due_s": 9, "urgency": 1}])
        assert queue.send() == 1, rule


def test_late_work_keeps_its_share_of_the_tokens_oldest_first():
    # Two late tasks of 100 tokens each; a share of a quarter: each 300 tokens of other work
    # bring 300 * 0.25 / 0.75 = 100 tokens of credit, one late task.
    late = {"time_s": 9, "due_s": 1, "tokens": 100}
    fine = {"time_s": 1, "due_s": 1000, "tokens": 100}
    queue = Queue("hopeless_last", [late, late, *[fine] * 8], late_share=0.25)
    assert queue.drain() == [2, 3, 4, 0, 5, 6, 7, 1, 8, 9]


def test_without_a_share_late_work_comes_last():
    late, fine = {"time_s": 9, "due_s": 1}, {"time_s": 1, "due_s": 1000}
    assert Queue("hopeless_last", [late, *[fine] * 5]).drain() == [1, 2, 3, 4, 5, 0]


def test_what_has_waited_the_bound_goes_first_oldest_first():
    late = {"time_s": 9, "due_s": 1, "arrival_s": 0.0}
    fine = {"time_s": 1, "due_s": 1000, "arrival_s": 5.0}
    queue = Queue("hopeless_last", [late, fine], max_wait_s=8.0)
    assert queue.look(7.9) == 1
    assert queue.look(8.0) == 0


@given(
    st.lists(
        st.tuples(st.floats(0.1, 3), st.floats(0.1, 10), st.integers(1, 500)),
        min_size=2,
        max_size=40,
    ),
    st.floats(0.05, 0.6),
)
def test_while_late_work_waits_it_is_never_further_behind_its_share_than_two_tasks(tasks, share):
    fields = [{"time_s": t, "due_s": d, "tokens": n} for t, d, n in tasks]
    queue = Queue("hopeless_last", fields, late_share=share)
    now_s, late_tokens, other_tokens = 0.0, 0, 0
    while True:
        lane = queue.waiting.lanes.view(np.recarray)[queue.lane]
        waiting_late = int(lane.lates) > 0
        i = queue.look(now_s)
        if i < 0:
            return
        was_late = bool(queue.task(i).late)
        queue.send(now_s)
        now_s += float(queue.task(i).predicted_s)
        if not waiting_late:
            late_tokens = other_tokens = 0
            continue
        tokens = int(queue.task(i).uncached)
        late_tokens += tokens * was_late
        other_tokens += tokens * (not was_late)
        owed = other_tokens * share / (1 - share)
        if int(queue.waiting.lanes[queue.lane]["lates"]):
            assert late_tokens >= owed - 2 * 500 / (1 - share)
