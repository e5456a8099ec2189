# SPDX-License-Identifier: Apache-2.0
"""Moore-Hodgson against enumeration, and what caps take from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_kit import Queue, best_count, on_time

pytestmark = pytest.mark.unit

INSTANCES = 10_000


def instances(seed, most):
    rng = np.random.default_rng(seed)
    for _ in range(INSTANCES):
        n = int(rng.integers(1, most + 1))
        times_s = rng.integers(1, 10, n).astype(float)
        due_s = rng.integers(1, 5 * n + 5, n).astype(float)
        yield rng, list(zip(times_s, due_s, strict=True))


def test_the_count_equals_that_of_the_best_order_of_all():
    for _, tasks in instances(1, 5):
        queue = Queue("moore_hodgson", tasks)
        assert on_time(tasks, queue.drain()) == best_count(tasks), tasks


def test_it_keeps_the_longest_out():
    # By deadline: 4 (due 5), 3 (due 6): 7 > 6, drop the longest so far (4); then 2 (due 7): 5.
    assert Queue("moore_hodgson", [(4, 5), (3, 6), (2, 7)]).drain() == [1, 2, 0]


def test_a_busy_worker_is_a_later_start():
    # With 2 s still to compute the second one is late too: 2 + 3 > 4.
    queue = Queue("moore_hodgson", [(3, 4), (1, 4)])
    assert queue.look(0.0, 0.0) == 0
    assert queue.look(0.0, 2.0) == 1


def test_the_more_urgent_is_never_dropped_for_the_less_urgent():
    urgent = {"time_s": 5, "due_s": 6, "urgency": 1}
    assert Queue("moore_hodgson", [(1, 2), urgent]).drain() == [1, 0]


def test_beyond_the_window_nobody_is_looked_at():
    tasks = [(3, 3), (1, 2), (1, 1)]
    assert Queue("moore_hodgson", tasks, window=3).send() in (1, 2)
    # By deadline the first is task 2, and it alone is looked at.
    assert Queue("moore_hodgson", tasks, window=1).send() == 2


def capped_optimum(tasks, postponed, cap):
    """Most on-time tasks of the orders in which nobody at the cap is passed."""

    def keeps(order) -> bool:
        counts = list(postponed)
        left = set(range(len(tasks)))
        for i in order:
            left.discard(i)
            passed = [j for j in left if j < i]
            if any(counts[j] >= cap for j in passed):
                return False
            for j in passed:
                counts[j] += 1
        return True

    return best_count(tasks, keeps)


def test_no_cap_is_ever_broken_and_the_capped_optimum_is_near(record_property):
    cap, short = 2, 0
    for rng, tasks in instances(2, 4):
        postponed = [int(n) for n in rng.integers(0, cap + 1, len(tasks))]
        fields = [
            {"time_s": t, "due_s": d, "postponed": n}
            for (t, d), n in zip(tasks, postponed, strict=True)
        ]
        queue = Queue("moore_hodgson", fields, cap=cap)
        order, counts, left = queue.drain(), list(postponed), set(range(len(tasks)))
        for i in order:
            left.discard(i)
            for j in [j for j in left if j < i]:
                assert counts[j] < cap, (tasks, postponed, order)
                counts[j] += 1
        short += capped_optimum(tasks, postponed, cap) - on_time(tasks, order)
    record_property("tasks_short_of_the_capped_optimum_per_instance", float(short / INSTANCES))
    # Capped first, the rest by the rule: not optimal, but near (0.09 a case when this was written).
    assert 0 < short / INSTANCES < 0.2


@given(
    st.lists(st.tuples(st.floats(0.01, 9), st.floats(0.01, 40)), min_size=1, max_size=30),
    st.sampled_from(["hopeless_last", "earliest_deadline", "moore_hodgson", "shortest", "fifo"]),
)
def test_every_task_is_sent_once_whatever_the_rule(tasks, rule):
    assert sorted(Queue(rule, tasks).drain()) == list(range(len(tasks)))
