# SPDX-License-Identifier: Apache-2.0
"""What every placement rule must keep, and what is decided before a rule is asked."""

from random import Random
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.routing.inflight import InFlightBound
from controller.routing.kernels.orderings import FIFO, ORDERINGS, Ordering
from controller.routing.registry import PLACEMENTS, decide
from controller.routing.waiting import WaitingPrefills
from controller.simulation.cluster.placement import PLACEMENTS as SIMULATED
from controller.types import DecisionReason, OrderingName, Place, RoutingParams, Slo

pytestmark = pytest.mark.unit

SLO = Slo(ttft_ms=1000, itl_ms=50)
SECONDS = st.one_of(st.just(float("nan")), st.floats(0, 100))


def build(name, costs):
    return PLACEMENTS[name](costs, SLO, RoutingParams(), Random(0))


@pytest.mark.parametrize("name", PLACEMENTS)
def test_an_empty_prefill_pool_means_local_prefill(name, unit_costs, task, view):
    decision = decide(build(name, unit_costs), task(), view(itl=[9.0], bound=0))
    assert (decision.place, decision.reason) == (Place.LOCAL, DecisionReason.PREFILL_POOL_EMPTY)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_several_sequences_go_local(name, unit_costs, task, view):
    decision = decide(build(name, unit_costs), task(sequences=2), view(ttft=[0.1]))
    assert (decision.place, decision.reason) == (Place.LOCAL, DecisionReason.MULTIPLE_SEQUENCES)


@pytest.mark.parametrize("name", PLACEMENTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # they hold no state
@given(data=st.data())
def test_a_remote_decision_names_a_live_worker(name, data, unit_costs, task, view):
    workers = data.draw(st.integers(1, 5))
    ttft = data.draw(st.lists(SECONDS, min_size=workers, max_size=workers))
    itl = data.draw(st.lists(SECONDS, max_size=3))
    bound = data.draw(st.sampled_from([None, *range(len(itl))]))
    state = view(ttft=ttft, itl=itl, bound=bound)
    decision = decide(build(name, unit_costs), task(), state)
    if decision.place is Place.REMOTE:
        assert decision.worker_id in state.prefill.worker_ids
    else:
        assert decision.worker_id is None


def test_always_remote_takes_the_worker_that_would_finish_first(unit_costs, task, view):
    # 500 tokens: 0.51 s; worker 101 caches 400 of them (0.11 s) and has 0.3 s queued.
    state = view(ttft=[0.1, 5.0], prefill_queue=[0.0, 0.3], cached=[0, 400])
    decision = build("always_remote", unit_costs).place(task(), state)
    assert (decision.worker_id, decision.reason) == (101, DecisionReason.LEAST_LOADED)


def admits(in_flight_tokens, uncached_tokens):
    """Whether a worker is sent one more prefill."""
    waiting = WaitingPrefills(Ordering(FIFO))
    lane = waiting.open_lane()
    if in_flight_tokens:
        waiting.fly(lane, waiting.new_task(0.0, in_flight_tokens), 1.0, 0.0)
    row = waiting.new_task(0.0, uncached_tokens)
    waiting.join(lane, row, 1.0, 9.0, 0.0)
    chosen, _ = waiting.look(lane, 0.0, InFlightBound(max_num_batched_tokens=2048).tokens)
    return chosen == row


def test_the_bound_lets_a_step_run_and_the_next_one_fill():
    assert admits(in_flight_tokens=2048, uncached_tokens=2048)
    assert not admits(in_flight_tokens=2049, uncached_tokens=2048)
    assert admits(in_flight_tokens=0, uncached_tokens=100_000)


def test_names_in_configurations_are_those_of_the_rules():
    # A name without a rule fails at import; the simulator and the orderings have their own tables.
    assert set(PLACEMENTS) == set(SIMULATED)
    assert set(get_args(OrderingName)) == set(ORDERINGS)


def test_kv_cost_weighs_hits_against_blocks_in_flight(unit_costs, task, view):
    # 640 tokens are 10 blocks. Worker 100: no hits, nothing in flight: 10. Worker 101: 4 blocks
    # hit, 2.5 in flight: 8.5. Worker 102: 8 blocks hit, 9 in flight: 11.
    state = view(ttft=[0.1] * 3, cached=[0, 256, 512], tokens=[0, 160, 576])
    decision = build("kv_cost", unit_costs).place(task(increment=640), state)
    assert (decision.worker_id, decision.reason) == (101, DecisionReason.KV_COST)


def test_conditional_stays_local_for_a_warm_prompt_only(unit_costs, task, view):
    state = view(ttft=[0.1], itl=[0.01], bound=0)
    place = build("conditional", unit_costs).place
    # It lacks 600 of 1,000 tokens, below 0.7 of them and below 2,048.
    warm = place(task(history=400, increment=600), state)
    assert (warm.place, warm.reason) == (Place.LOCAL, DecisionReason.BELOW_THRESHOLD)
    # Exactly 0.7 of them is too much, and so is all of a short cold prompt.
    for history, increment in ((300, 700), (0, 10)):
        cold = place(task(history=history, increment=increment), state)
        assert (cold.worker_id, cold.reason) == (100, DecisionReason.ABOVE_THRESHOLD)


def test_only_the_least_estimate_of_a_large_pool_is_kept_for_the_log(unit_costs, task, view):
    queued = [float(100 - i) for i in range(100)]
    state = view(ttft=[0.1] * 100, prefill_queue=queued)
    decision = build("always_remote", unit_costs).place(task(), state)
    assert [name for name, _ in decision.estimates_s] == ["199"]
