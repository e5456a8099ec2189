# SPDX-License-Identifier: Apache-2.0
"""What one more task would cost a queue, worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_kit import Queue, best_count

from controller.routing.kernels.forecast import chance

pytestmark = pytest.mark.unit


def price(queue, time_s, due_s, now_s=0.0, busy_s=0.0, cv=0.0):
    """(on-time tasks lost by the others, predicted end, chance)."""
    return queue.price(time_s, due_s, now_s, busy_s, cv)


def test_the_end_is_behind_all_in_first_come_first_served():
    # 2 s still run, 1 + 3 s wait, 1 s of its own.
    assert price(Queue("fifo", [(1, 9), (3, 9)]), 1, 9, 0.0, 2.0) == (0.0, 7.0, 1.0)


def test_who_is_passed_over_is_not_in_the_way():
    # Task 0 (5 s, due 4) is hopeless: the newcomer ends after task 1 alone.
    assert price(Queue("hopeless_last", [(5, 4), (1, 9)]), 1, 9) == (0.0, 2.0, 1.0)


def test_a_late_newcomer_ends_behind_everybody_who_is_kept():
    cost, end_s, odds = price(Queue("hopeless_last", [(1, 9), (1, 9)]), 5, 4)
    assert (cost, end_s, odds) == (0.0, 2.0 + 5.0, 0.0)


def test_by_deadline_the_newcomer_makes_others_late():
    # Newcomer 3 s due 4 goes first; task 0 (2 s, due 4.5) would end at 5: late, one lost.
    cost, end_s, odds = price(Queue("earliest_deadline", [(2, 4.5)]), 3, 4)
    assert (cost, end_s, odds) == (1.0, 3.0, 1.0)


def test_moore_hodgson_gives_up_the_longest_for_it():
    # 4 s due 5 and the newcomer 1 s due 5 fit: 5 <= 5. With 2 s they do not: the 4 s one goes.
    assert price(Queue("moore_hodgson", [(4, 5)]), 1, 5)[0] == 0.0
    assert price(Queue("moore_hodgson", [(4, 5)]), 2, 5) == (1.0, 2.0, 1.0)


def test_the_share_of_late_work_slows_the_rest():
    queue = Queue("hopeless_last", [(9, 1), (1, 99)], late_share=0.5)
    queue.send()  # task 1 goes; task 0 is late from now on
    queue.add(1, 99)
    # Half of the tokens go to late work: 1 s takes 2, then the newcomer's own 2.
    assert price(queue, 1, 99)[1] == pytest.approx(4.0)


def test_chance_is_that_of_a_normal_error():
    assert chance(0.0, 1.0) == 0.5
    assert chance(1.96, 1.0) == pytest.approx(0.975, abs=1e-4)
    assert (chance(0.1, 0.0), chance(-0.1, 0.0)) == (1.0, 0.0)


def test_uncertainty_adds_up_over_the_tasks_before():
    # Ends at 3 with errors 0.2 * (1, 2): sigma = 0.2 * sqrt(5); due 3.4.
    _, end_s, odds = price(Queue("fifo", [(1, 99)]), 2, 3.4, cv=0.2)
    sigma = 0.2 * math.sqrt(1 + 4)
    assert end_s == 3.0
    assert odds == pytest.approx(0.5 * math.erfc(-0.4 / sigma / math.sqrt(2)))


TASKS = st.lists(st.tuples(st.integers(1, 9).map(float), st.integers(1, 20).map(float)), max_size=4)


@given(TASKS, st.integers(1, 9).map(float), st.integers(1, 20).map(float))
def test_the_price_under_moore_hodgson_is_the_change_of_the_optimum(tasks, time_s, due_s):
    cost, _, odds = price(Queue("moore_hodgson", tasks), time_s, due_s)
    before = best_count(tasks) if tasks else 0
    assert odds - cost == best_count([*tasks, (time_s, due_s)]) - before


@given(TASKS, st.integers(1, 9).map(float), st.integers(1, 20).map(float))
def test_asking_changes_nothing(tasks, time_s, due_s):
    for rule in ("fifo", "hopeless_last", "earliest_deadline", "moore_hodgson"):
        asked, silent = Queue(rule, tasks), Queue(rule, tasks)
        price(asked, time_s, due_s)
        assert asked.drain() == silent.drain()
