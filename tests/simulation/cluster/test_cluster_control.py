# SPDX-License-Identifier: Apache-2.0
"""A control loop around a simulation: what it reads, what it may change between two advances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cluster_kit import COSTS, ENGINE, requests

from controller.simulation.cluster import (
    ClusterEvent,
    EventKind,
    SimOptions,
    Simulation,
    SimulationError,
    simulate,
    uniform_cluster,
)
from controller.types import RoutingParams

pytestmark = [pytest.mark.unit, pytest.mark.timeout(900)]


def busy_load():
    rng = np.random.default_rng(0)
    return requests(*[(float(t), 200, 50) for t in np.sort(rng.uniform(0, 5, 60))])


def test_an_observation_counts_the_tokens_of_a_running_run_of_steps():
    # First token at 0.13 s, then one every 10 ms.
    run = Simulation(requests((0.0, 100, 200)), uniform_cluster(1, 1, ENGINE, COSTS), SimOptions())
    run.advance(0.505)
    seen = run.observe()
    assert seen.now_s == 0.505
    assert (seen.batch.tolist(), seen.running.tolist()) == ([0, 1], [0, 1])
    assert seen.totals["output_tokens"][1] == 38
    assert seen.context_tokens[1] == 100 + 37
    assert seen.itl_window_s[1] == pytest.approx(0.01)
    assert seen.ttft_window_s[0] == pytest.approx(0.12)
    assert (600 - seen.free_blocks).tolist() == [0, 9]
    assert seen.requests == {"arrived": 1, "served": 0, "rejected": 0, "failed": 0}


def test_an_observation_shows_who_waits_where():
    load = requests(*[(0.0, 500, 5)] * 5)
    options = SimOptions(in_flight_steps=1)
    run = Simulation(load, uniform_cluster(1, 1, ENGINE, COSTS), options)
    run.advance(0.6)
    seen = run.observe()
    # One has been handed over, one is in flight, three wait at the router.
    assert (seen.queued.tolist(), seen.in_flight.tolist()) == ([3, 0], [1, 0])
    assert seen.decodes.tolist() == [False, True]


def test_an_observation_counts_tokens_that_come_several_a_step_and_those_under_way():
    engine = replace(ENGINE, verified_tokens=4, emitted_tokens=2.5, async_scheduling=True)
    run = Simulation(requests((0.0, 100, 200)), uniform_cluster(0, 1, engine, COSTS), SimOptions())
    run.advance(0.155)
    seen = run.observe()
    # The prefill's token at 0.11 s; four steps ended by 0.15 s, the fifth runs: 2 + 3 + 2 + 3, 2.
    assert seen.totals["output_tokens"].tolist() == [1 + 10]
    assert seen.context_tokens.tolist() == [100 + 10 + 2]
    # Blocks for the sixth step, which is composed: 3 tokens more.
    assert (600 - seen.free_blocks).tolist() == [-(-115 // 16)]


@pytest.mark.parametrize("blocks", [600, 60])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("emitted", [1.0, 2.5])
def test_looking_changes_nothing(blocks, ahead, emitted):
    engine = replace(
        ENGINE,
        num_blocks=blocks,
        async_scheduling=ahead,
        verified_tokens=4,
        emitted_tokens=emitted,
    )
    cluster, options = uniform_cluster(2, 2, engine, COSTS), SimOptions(placement="ampd")
    whole = simulate(busy_load(), cluster, options)
    watched = Simulation(busy_load(), cluster, options)
    for tick in range(1, 400):
        watched.advance(tick / 37)
        watched.observe()
    watched.advance()
    assert np.array_equal(whole.finish_s, watched.result().finish_s)


def test_events_can_be_added_while_it_runs():
    run = Simulation(busy_load(), uniform_cluster(2, 2, ENGINE, COSTS), SimOptions())
    run.advance(2.0)
    run.add_events([ClusterEvent(2.0, 0, EventKind.FAIL)])
    run.advance(2.5)
    assert run.observe().life.tolist() == [3, 0, 0, 0]
    run.add_events([ClusterEvent(3.0, 0, EventKind.JOIN), ClusterEvent(2.7, 3, EventKind.SWITCH)])
    run.advance()
    late = run.result()
    assert late.served.all()
    assert not (late.prefill_worker[(late.sent_s > 2.0) & (late.sent_s < 3.0)] == 0).any()
    assert {0, 3} < set(late.prefill_worker[late.sent_s > 3.0])
    with pytest.raises(SimulationError, match="lies before now"):
        run.add_events([ClusterEvent(1.0, 0, EventKind.FAIL)])
    with pytest.raises(SimulationError, match="names worker 4 of 4"):
        run.add_events([ClusterEvent(90.0, 4, EventKind.FAIL)])


def test_rules_and_parameters_hold_from_then_on():
    run = Simulation(busy_load(), uniform_cluster(2, 2, ENGINE, COSTS), SimOptions())
    run.advance(2.0)
    run.set_rules(placement="always_local")
    run.advance(3.0)
    run.set_params(RoutingParams(alpha=0.5, beta=0.5, window_s=5.0))
    run.set_rules(placement="ampd", ordering="fifo")
    run.advance()
    late = run.result()
    middle = (late.arrival_s >= 2.0) & (late.arrival_s < 3.0)
    assert not late.place[late.arrival_s < 2.0].any()
    assert late.place[middle].all()
    assert "prefill_slack" in np.array(late.reasons)[late.arrival_s >= 3.0]


def test_a_new_ordering_takes_over_what_waits():
    # One prefill at a time: 500 tokens first, then the shorter ones overtake the longer one.
    load = requests((0.0, 500, 2), (0.01, 480, 2), (0.02, 300, 2), (0.03, 250, 2))
    cluster, options = uniform_cluster(1, 1, ENGINE, COSTS), SimOptions(in_flight_steps=1)
    run = Simulation(load, cluster, options)
    run.advance(0.1)
    run.set_rules(ordering="shortest")
    run.advance()
    assert np.argsort(run.result().sent_s).tolist() == [0, 3, 2, 1]
    assert run.result().served.all()
    back = Simulation(load, cluster, replace(options, ordering="shortest"))
    back.advance(0.1)
    back.set_rules(ordering="fifo")
    back.advance()
    assert np.argsort(back.result().sent_s).tolist() == [0, 1, 2, 3]


def test_a_rule_that_cannot_be_set_is_one_clear_line():
    run = Simulation(busy_load(), uniform_cluster(2, 2, ENGINE, COSTS), SimOptions(gaps=False))
    with pytest.raises(SimulationError, match="placement is 'best'; known: ampd"):
        run.set_rules(placement="best")
    with pytest.raises(SimulationError, match="reads step times: start with"):
        run.set_rules(placement="ampd")
    assert np.isnan(run.observe().itl_window_s).all()
