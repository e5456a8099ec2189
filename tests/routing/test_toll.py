# SPDX-License-Identifier: Apache-2.0
"""The toll rule on a view, worked by hand.

Unit costs: 10 ms a step, 1 ms a prompt token, 1 ms a running decode, 0.1 ms a KV token moved.
TTFT limit 1 s, ITL limit 50 ms; with a guard of 0.8 a step beside decodes may take 40 ms.
"""

import pytest
from lanes_kit import empty_lanes

from controller.routing.kernels.orderings import FIFO, HOPELESS_LAST, Ordering
from controller.routing.toll import Toll
from controller.types import DecisionReason, Place, RoutingParams, Slo, TollParams

pytestmark = pytest.mark.unit

SLO = Slo(ttft_ms=1000, itl_ms=50)


def rule(costs, **knobs):
    params = RoutingParams(toll=TollParams(**{"expected_error": 0.0} | knobs))
    return Toll(costs, SLO, params)


def wait(lanes, lane, *tasks):
    """(predicted seconds, due) each, in this order."""
    for predicted_s, due_s in tasks:
        lanes.join(lane, lanes.new_task(0.0, 1), predicted_s, due_s, 0.0)


def test_an_idle_prefill_worker_beats_a_decode_worker_that_cannot_bear_the_chunk(
    unit_costs, task, view
):
    # The whole engine budget of 1,000 tokens would be a step of 1.01 s, halves of it 0.5 s and
    # 0.25 s: none fits in 40 ms.
    decision = rule(unit_costs).place(task(), view(ttft=[0.0], itl=[0.01], bound=0))
    assert (decision.place, decision.worker_id) == (Place.REMOTE, 100)
    assert decision.reason is DecisionReason.TOLL_REMOTE
    # 500 tokens 0.51 s, transfer 0.05 s, first step 0.01 + 0.001 s.
    assert dict(decision.estimates_s) == pytest.approx({"100": 0.571})


def test_the_price_counts_whom_it_makes_late(unit_costs, task, view):
    # Own prefill 0.51 s. Worker 100 is empty but slow to hand over; on 101 two tasks of 0.3 s are
    # due at 0.35 and 0.65 s: behind them in FIFO it ends at 1.11 s and is late itself (price 1),
    # on 100 it ends at 0.51 s, before 0.939 (price 0).
    lanes = empty_lanes(2, Ordering(FIFO))
    wait(lanes, 1, (0.3, 0.35), (0.3, 0.65))
    decision = rule(unit_costs).place(task(), view(ttft=[0.0, 0.0], waiting=lanes))
    assert decision.worker_id == 100


def test_the_price_knows_the_ordering_in_force(unit_costs, task, view):
    # Worker 100: a hopeless prefill of 5 s waits. In FIFO a newcomer would end at 5.51 s; where the
    # hopeless let others pass it ends at 0.51 s. Worker 101: 0.4 s of work that is in time.
    def chosen(kind):
        lanes = empty_lanes(2, Ordering(kind))
        wait(lanes, 0, (5.0, 1.0))
        wait(lanes, 1, (0.4, 9.0))
        return rule(unit_costs).place(task(), view(ttft=[0.0, 0.0], waiting=lanes)).worker_id

    assert (chosen(FIFO), chosen(HOPELESS_LAST)) == (101, 100)


def test_local_in_chunks_that_the_batch_bears(unit_costs, task, view):
    # Chunks of at most 25: a step takes 10 + 25 + 2 ms (two decodes) = 37 ms, below 40.
    # 100 tokens: chunk + batch = 27 tokens a step less the batch: four steps of 25: 0.148 s.
    # The prefill worker has 3 s of work: late there, price 1.
    lanes = empty_lanes(1)
    wait(lanes, 0, (3.0, 9.0))
    state = view(ttft=[0.0], itl=[0.01], bound=0, waiting=lanes, batch=[2])
    decision = rule(unit_costs, local_chunk_tokens=25).place(task(increment=100), state)
    assert (decision.place, decision.reason) == (Place.LOCAL, DecisionReason.TOLL_LOCAL)
    assert decision.chunks == (25,)
    assert decision.local_s == pytest.approx(4 * 0.037)
    assert dict(decision.estimates_s)["local"] == pytest.approx(0.148)


def test_a_chunk_is_halved_until_the_batch_bears_it(unit_costs, task, view):
    lanes = empty_lanes(1)
    wait(lanes, 0, (3.0, 9.0))
    state = view(ttft=[0.0], itl=[0.01], bound=0, waiting=lanes, batch=[2])
    # 60 tokens: 72 ms; 30: 42 ms; 15: 27 ms.
    decision = rule(unit_costs, local_chunk_tokens=60).place(task(increment=90), state)
    assert decision.chunks == (15,)


def test_an_engine_that_chunks_as_it_likes_must_bear_its_whole_budget(unit_costs, task, view):
    lanes = empty_lanes(1)
    wait(lanes, 0, (3.0, 9.0))
    place = rule(unit_costs, local_chunk_tokens=15).place
    stock = {"ttft": [0.0], "itl": [0.01], "bound": 0, "waiting": lanes, "chunked": [0]}
    # A budget of 1,000 tokens: a prompt of 90 is one step of 100 ms.
    assert place(task(increment=90), view(**stock)).place is Place.REMOTE
    # One of 25: a step takes 35 ms. Nothing is asked of the engine.
    local = place(task(increment=90), view(**stock, budget_tokens=[25]))
    assert (local.place, local.chunks) == (Place.LOCAL, ())
    # A short prompt never fills the budget: 20 tokens are a step of 30 ms.
    assert place(task(increment=20), view(**stock)).place is Place.LOCAL


def test_no_local_prefill_without_room_for_its_kv(unit_costs, task, view):
    lanes = empty_lanes(1)
    wait(lanes, 0, (3.0, 9.0))
    place = rule(unit_costs, local_chunk_tokens=25).place
    full = {"ttft": [0.0], "itl": [0.01], "bound": 0, "waiting": lanes, "kv_tokens": [1000]}
    assert place(task(increment=100), view(**full, context_tokens=[900])).place is Place.LOCAL
    assert place(task(increment=100), view(**full, context_tokens=[901])).place is Place.REMOTE


def test_a_fresh_session_may_go_to_the_roomiest_decode_worker(unit_costs, task, view):
    lanes = empty_lanes(1)
    wait(lanes, 0, (3.0, 9.0))
    place = rule(unit_costs, local_chunk_tokens=25).place
    two = {
        "ttft": [0.0],
        "itl": [0.01, 0.01],
        "bound": 0,
        "waiting": lanes,
        "decode_queue": [0.2, 0.0],
    }
    assert place(task(increment=100), view(**two)).decode_id is None
    assert place(task(increment=100), view(**two, fresh=True)).decode_id == 201


def test_a_tasks_own_limits_count(unit_costs, task, view):
    # 0.571 s to the first token by way of worker 100: in time for 1 s, late for 0.5 s, and a local
    # prefill of four bearable steps is in time for both. Ties of the price go by time: local.
    own = task(increment=500, slo=Slo(ttft_ms=100_000, itl_ms=5_000))
    state = view(ttft=[0.0], itl=[0.01], bound=0)
    assert rule(unit_costs).place(task(increment=500), state).place is Place.REMOTE
    assert rule(unit_costs).place(own, state).place is Place.LOCAL  # 0.51 s, no transfer


def test_a_prefill_that_would_be_late_beside_decodes_leaves_the_place_to_others(
    unit_costs, task, view
):
    # 500 tokens in chunks of 20 take 25 steps of 0.031 s beside one decode, 0.775 s: with 0.3 s of
    # age that is 1.075 s, late, but sooner than behind 5 s of work at the prefill worker.
    lanes = empty_lanes(1, Ordering(FIFO))
    wait(lanes, 0, (5.0, 9.0))
    pools = {"ttft": [0.0], "itl": [0.01], "bound": 0, "waiting": lanes}

    def placed(arrival_s, least_chance):
        state = view(**pools, chunked=[True], batch=[1])
        chosen = rule(unit_costs, local_chunk_tokens=20, least_chance=least_chance)
        return chosen.place(task(arrival_s=arrival_s), state).place

    assert placed(0.0, 0.7) is Place.LOCAL
    assert placed(-0.3, 0.0) is Place.LOCAL
    assert placed(-0.3, 0.7) is Place.REMOTE
