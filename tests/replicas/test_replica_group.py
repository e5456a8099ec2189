# SPDX-License-Identifier: Apache-2.0
"""Replicas share the queues: one owner each, one bound, whatever becomes of Redis and of a peer."""

import asyncio
import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicas_kit import Exchange, Replica, linked, until

from controller.runtime.replicas.wire import MOST_BYTES, Ask, Done, Frames, Hello, frame

pytestmark = pytest.mark.integration

WORKERS = tuple(range(1, 9))


@pytest.fixture
async def trio(unit_costs):
    exchange = Exchange()
    replicas = [Replica(n, exchange.store(), unit_costs, WORKERS) for n in ("a", "b", "c")]
    await linked(*replicas)
    yield exchange, replicas
    for replica in replicas:
        await replica.stop()


async def test_every_queue_has_exactly_one_owner(trio):
    _, replicas = trio
    owned = [w for replica in replicas for w in replica.owns(WORKERS)]
    assert sorted(owned) == sorted(WORKERS)


async def test_the_bound_holds_for_all_replicas_together(trio):
    _, replicas = trio
    tickets = [(r, r.join(1, 600)) for r in replicas for _ in range(3)]

    def granted():
        return [t for _, t in tickets if t.granted.done()]

    await until(lambda: len(granted()) == 1, "the first grant")
    await asyncio.sleep(0.1)
    served = 0
    while tickets:
        flying = [(r, t) for r, t in tickets if t.granted.done()]
        assert sum(t.uncached_tokens for _, t in flying) <= 1000
        for replica, ticket in flying:
            replica.leave(ticket)
            tickets.remove((replica, ticket))
            served += 1
        await until(lambda: not tickets or granted(), "the next grant")
    assert served == 9
    await until(lambda: all(r.group.places == (0, 0) for r in replicas), "no place is left")


async def test_first_come_first_served_holds_across_replicas(trio):
    _, replicas = trio
    blocker = replicas[0].join(1, 1000)
    await blocker.granted
    tickets = []
    for replica in [*replicas, *replicas]:
        tickets.append((replica, replica.join(1, 900)))
        await asyncio.sleep(0.02)
    running, at = blocker, replicas[0]
    for replica, ticket in tickets:
        at.leave(running)
        await asyncio.wait_for(ticket.granted, 2)
        running, at = ticket, replica
    at.leave(running)


async def test_what_a_dead_asker_held_is_free_at_once(trio):
    _, replicas = trio
    owner = next(r for r in replicas if 1 in r.owns(WORKERS))
    asker, other = (r for r in replicas if r is not owner)
    await asker.join(1, 1000).granted
    waiting = other.join(1, 1000)
    await asyncio.sleep(0.1)
    assert not waiting.granted.done()
    await asker.stop()
    await asyncio.wait_for(waiting.granted, 2)


async def test_when_an_owner_goes_its_queues_are_served_all_the_same(trio):
    _, replicas = trio
    owner = next(r for r in replicas if 1 in r.owns(WORKERS))
    asker = next(r for r in replicas if r is not owner)
    await owner.join(1, 1000).granted
    waiting = asker.join(1, 1000)
    await asyncio.sleep(0.05)
    assert not waiting.granted.done()
    await owner.stop()
    await asyncio.wait_for(waiting.granted, 3)
    left = [r for r in replicas if r is not owner]
    await until(lambda: all(r.group.replicas == 2 for r in left), "two members")
    assert sorted(w for r in left for w in r.owns(WORKERS)) == sorted(WORKERS)


async def test_without_redis_owners_stay_and_say_so_and_come_back(trio, caplog):
    exchange, replicas = trio
    before = [r.owns(WORKERS) for r in replicas]
    exchange.up = False
    await until(lambda: not any(r.group.redis_up for r in replicas), "they notice")
    assert "redis_away" in caplog.text
    ticket = next(r for r in replicas if 1 not in r.owns(WORKERS)).join(1, 500)
    await asyncio.wait_for(ticket.granted, 1)
    assert [r.owns(WORKERS) for r in replicas] == before
    await until(lambda: all(r.group.stale_s() is None for r in replicas), "old books are dropped")
    exchange.members.clear()  # a restarted Redis knows nobody
    exchange.up = True
    await until(lambda: all(r.group.redis_up for r in replicas), "they find it again")
    await until(lambda: len(exchange.members) == 3, "all are members")
    await asyncio.sleep(0.1)
    assert [r.owns(WORKERS) for r in replicas] == before


async def test_a_decision_sees_what_the_other_replicas_have_sent(trio):
    _, replicas = trio
    asker = replicas[0]
    worker = next(w for w in WORKERS if w not in asker.owns(WORKERS))
    other = next(r for r in replicas[1:] if worker not in r.owns(WORKERS))
    assert asker.queues.predicted_s(worker, time.monotonic()) == 0.0
    tickets = [other.join(worker, 700) for _ in range(3)]
    await until(
        lambda: asker.queues.predicted_s(worker, time.monotonic()) > 1.3, "the other's prefills"
    )
    for ticket in tickets:
        other.leave(ticket)
    await until(lambda: asker.queues.predicted_s(worker, time.monotonic()) == 0.0, "they have gone")


async def test_what_others_most_likely_do_is_counted_until_they_tell(trio):
    exchange, replicas = trio
    asker = replicas[0]
    worker = next(w for w in WORKERS if w not in asker.owns(WORKERS))
    exchange.up = False  # nobody tells
    await until(lambda: not asker.group.redis_up, "it is away")
    ticket = asker.join(worker, 500)
    # Its own half second, and as much for each of the two that see what it sees.
    assert asker.queues.predicted_s(worker, time.monotonic()) == pytest.approx(1.5, abs=0.05)
    exchange.up = True
    await until(
        lambda: asker.queues.predicted_s(worker, time.monotonic()) < 0.6, "the owner has told"
    )
    asker.leave(ticket)


async def test_local_prefills_of_others_are_seen_on_the_decode_workers(trio):
    _, replicas = trio
    replicas[1].decode.local_sent(101, "x", 5.0, time.monotonic())
    replicas[1].decode.hold(102, 300)

    def seen():
        view = replicas[0].decode.view(time.monotonic())
        return view.queue_s[0] > 4.0 and view.local_prefills[0] == 1 and view.held_tokens[1] == 300

    await until(seen, "the other's books")


async def test_a_session_bound_at_one_replica_is_known_at_the_others(trio):
    _, replicas = trio
    known = {}
    replicas[2].sessions.adopt = known.__setitem__
    replicas[0].sessions.note("s", 101)
    await until(lambda: known == {"s": 101}, "it has heard")


async def test_a_thousand_random_lives_leave_nothing_behind(trio):
    _, replicas = trio
    rng = Random(5)

    async def life(replica, worker, tokens, patience_s, run_s):
        ticket = replica.join(worker, tokens)
        try:
            await asyncio.wait_for(ticket.granted, patience_s)
            await asyncio.sleep(run_s)
        except asyncio.TimeoutError:
            pass
        finally:
            replica.leave(ticket)

    for _ in range(20):
        await asyncio.gather(
            *(
                life(
                    rng.choice(replicas),
                    rng.choice(WORKERS),
                    rng.randrange(1, 2000),
                    rng.uniform(0, 0.02),
                    rng.uniform(0, 0.003),
                )
                for _ in range(50)
            )
        )
    await until(lambda: all(r.group.places == (0, 0) for r in replicas), "no place is left")
    for replica in replicas:
        assert replica.queues.waiting() == replica.queues.in_flight() == 0
        await until(
            lambda r=replica: all(r.queues.predicted_s(w, time.monotonic()) == 0 for w in WORKERS),
            "no work is left in the books",
        )


messages = st.lists(
    st.one_of(
        st.builds(Done, st.integers(0, 2**31)),
        st.builds(Hello, st.text(max_size=20)),
        st.builds(
            Ask,
            *(st.integers(0, 9), st.integers(0, 2**64 - 1), st.integers(0, 7)),
            *(st.integers(0, 9), st.floats(0, 9), st.floats(0, 9), st.floats(0, 9)),
            *(st.integers(0, 9), st.floats(-9, 9), st.integers(0, 9), st.none() | st.text()),
            st.just(((2**64 - 1, 0, 5),)),
            st.none(),
        ),
    ),
    max_size=8,
)


@given(messages, st.data())
def test_messages_arrive_whole_in_whatever_pieces_the_bytes_come(sent, data):
    raw, got, frames = b"".join(map(frame, sent)), [], Frames()
    while raw:
        cut = data.draw(st.integers(1, len(raw)))
        got += frames.feed(raw[:cut])
        raw = raw[cut:]
    assert got == sent


def test_what_is_not_ours_is_refused():
    with pytest.raises(ValueError, match="bytes"):
        Frames().feed((MOST_BYTES + 1).to_bytes(4, "big"))
