# SPDX-License-Identifier: Apache-2.0
"""Which decode worker a request is bound to."""

from collections import Counter
from random import Random

import pytest

from controller.runtime.router.binding import Binding, DecodeLoads

pytestmark = pytest.mark.unit


@pytest.fixture
def loads():
    return DecodeLoads()


@pytest.fixture
def binding(loads):
    return Binding(loads, Random(5), capacity=2)


def test_the_least_kv_context_wins(loads, binding):
    loads.book(1, 5000)
    loads.book(2, 1000)
    loads.book(3, 4000)
    assert {binding.choose(None, (1, 2, 3), 0.0).worker_id for _ in range(20)} == {2}


def test_near_ties_are_drawn_and_the_draw_is_seeded(loads):
    loads.book(1, 10_000)
    loads.book(2, 10_900)
    loads.book(3, 11_200)
    draws = [Binding(loads, Random(7)).choose(None, (1, 2, 3), 0.0).worker_id for _ in range(3)]
    assert len(set(draws)) == 1
    binding = Binding(loads, Random(7))
    seen = Counter(binding.choose(None, (1, 2, 3), 0.0).worker_id for _ in range(100))
    assert set(seen) == {1, 2} and min(seen.values()) > 25


def test_requests_that_arrive_together_spread(loads, binding):
    chosen = []
    for _ in range(20):
        worker = binding.choose(None, (1, 2), 0.0).worker_id
        loads.book(worker, 2000)
        chosen.append(worker)
    assert Counter(chosen) == {1: 10, 2: 10}


def test_a_known_session_returns_to_its_worker_while_that_can_be_used(loads, binding):
    binding.note("s", 1)
    loads.book(1, 50_000)
    assert binding.choose("s", (1, 2), 0.0).worker_id == 1
    assert binding.choose("s", (2,), 0.0).worker_id == 2
    assert binding.choose(None, (1, 2), 0.0).worker_id == 2


def test_the_least_recently_used_session_is_forgotten(loads, binding):
    loads.book(1, 50_000)
    for session in ("a", "b"):
        binding.note(session, 1)
    binding.note("a", 1)
    binding.note("c", 1)
    assert [binding.choose(s, (1, 2), 0.0).worker_id for s in ("a", "b", "c")] == [1, 2, 1]


def test_a_stream_is_counted_until_it_ends(loads):
    first, second = loads.book(1, 100), loads.book(1, 50)
    loads.grow(first, 7)
    assert loads.context_tokens(1, 0.0) == 157
    loads.close(first)
    assert loads.context_tokens(1, 0.0) == 50
    loads.close(second)
    assert loads.context_tokens(1, 0.0) == 0


def test_a_workers_report_adds_other_routers_streams_and_goes_stale(loads):
    loads.book(1, 100)
    loads.observe(1, 900, now_s=10.0)
    assert loads.context_tokens(1, 11.0) == 900
    assert loads.context_tokens(1, 13.0) == 100
    loads.forget_all_but((2,))
    assert loads.context_tokens(1, 10.0) == 100
