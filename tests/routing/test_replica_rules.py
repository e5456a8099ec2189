# SPDX-License-Identifier: Apache-2.0
"""The pure rules of replicas: who owns what, what of the others' books counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.ownership import Owners, owner
from controller.routing.replica_state import (
    MOST_TASKS,
    DecodeBooks,
    LaneState,
    RemoteStates,
    ReplicaState,
    TaskState,
    decode,
    encode,
    shortened,
)

pytestmark = pytest.mark.unit

names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True)
WORKERS = range(10_000, 10_400)


@given(names, st.randoms())
def test_every_replica_names_the_same_owner_in_whatever_order_it_knows_them(replicas, rng):
    other = list(replicas)
    rng.shuffle(other)
    here, there = Owners(replicas), Owners(other)
    assert [here.of(w) for w in WORKERS[:50]] == [there.of(w) for w in WORKERS[:50]]


@given(names)
def test_a_replica_that_leaves_takes_only_its_own_queues_along(replicas):
    gone, *left = replicas
    for worker in WORKERS[:50]:
        before = owner(worker, replicas)
        if before != gone:
            assert owner(worker, left) == before


def test_queues_are_shared_about_evenly():
    counts = {name: 0 for name in ("a", "b", "c", "d")}
    for worker in WORKERS:
        counts[owner(worker, counts)] += 1
    assert min(counts.values()) > 60 and max(counts.values()) < 140


def state(replica, number, **more):
    return ReplicaState(replica, number, **more)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=40))
def test_an_older_state_never_takes_the_place_of_a_newer_one(arrivals):
    remote, newest = RemoteStates(100.0), {}
    for at, (replica, number) in enumerate(arrivals):
        taken = remote.take(state(replica, number), float(at))
        assert taken == (number > newest.get(replica, -1))
        newest[replica] = max(number, newest.get(replica, -1))


def test_books_that_are_too_old_count_no_more():
    remote = RemoteStates(2.0)
    remote.take(state("a", 1, decode=(DecodeBooks(5, 1.0, 1, 100),)), 10.0)
    assert remote.expired(11.0) == [] and remote.age_s(11.0) == 1.0
    assert [each.replica for each in remote.expired(12.5)] == ["a"]
    assert remote.decode_books(12.5) == {} and remote.age_s(12.5) is None
    assert remote.take(state("a", 1), 13.0)  # it is back


def test_decode_books_add_up_and_run_on():
    remote = RemoteStates(10.0)
    remote.take(state("a", 1, decode=(DecodeBooks(5, 1.0, 1, 100),)), 0.0)
    remote.take(state("b", 1, decode=(DecodeBooks(5, 0.2, 2, 50), DecodeBooks(6, 3.0, 1, 1))), 0.5)
    books = remote.decode_books(1.0)
    assert books[5] == DecodeBooks(5, pytest.approx(0.0), 3, 150)
    assert books[6].local_s == pytest.approx(2.5)
    remote.forget_all_but(["b"])
    assert remote.decode_books(0.5)[5] == DecodeBooks(5, pytest.approx(0.2), 2, 50)


def task(uncached=10, **more):
    values = {
        "asked_by": "a",
        "uncached": uncached,
        "predicted_s": 0.1,
        "due_in_s": 1.0,
        "arrived_ago_s": 0.5,
        "urgency": 0,
        "flies": False,
    }
    return TaskState(**(values | more))


@given(st.lists(st.integers(1, 1000), max_size=200))
def test_a_long_queue_is_told_shortly_and_loses_no_work(tokens):
    told = shortened([task(n) for n in tokens])
    assert len(told) <= MOST_TASKS + 1
    assert sum(each.uncached for each in told) == sum(tokens)
    assert sum(each.predicted_s for each in told) == pytest.approx(0.1 * len(tokens))


def test_states_survive_the_wire_and_rubbish_does_not():
    told = state("a", 3, lanes=(LaneState(2**63 + 5, 1, (task(),)),), sessions=(("s", 2**63),))
    assert decode(encode(told)) == told
    assert decode(b"") is None and decode(b"\x93\x01\x02") is None
    assert decode(encode(told)[:-3]) is None
