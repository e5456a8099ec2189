# SPDX-License-Identifier: Apache-2.0
"""Failures and scale events: what each of them does, by head arithmetic."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from cluster_kit import COSTS, clusters, options, requests, two_rounds, workloads
from hypothesis import HealthCheck, given, settings

from controller.engine import EngineSpec
from controller.simulation.cluster import (
    ClusterEvent,
    ClusterSpec,
    EventKind,
    SimOptions,
    SimulationError,
    Status,
    Worker,
    simulate,
)

pytestmark = [pytest.mark.unit, pytest.mark.timeout(900)]

ENGINE = EngineSpec(
    block_size=16,
    num_blocks=64,
    max_num_batched_tokens=512,
    max_num_seqs=16,
    kv_lease_s=5.0,
    cold_start_s=2.0,
)
FAIL, JOIN, DRAIN, SWITCH = EventKind


def cluster(prefill: int, decode: int, *events: tuple[float, int, EventKind], absent=()):
    workers = [Worker(present=i not in absent) for i in range(prefill + decode)]
    return ClusterSpec(
        (ENGINE,),
        (COSTS,),
        tuple(workers[:prefill]),
        tuple(workers[prefill:]),
        events=tuple(ClusterEvent(*event) for event in events),
    )


def test_a_prefill_that_loses_its_worker_goes_to_another_one():
    run = simulate(requests((0.0, 100, 3)), cluster(2, 1, (0.05, 0, FAIL)), SimOptions())
    assert run.prefill_worker.tolist() == [1]
    assert run.prefill_end_s[0] == pytest.approx(0.05 + 0.11)
    assert run.migrations.tolist() == [0]


def test_a_prefill_that_loses_two_workers_runs_on_its_decode_worker():
    lost = cluster(3, 1, (0.05, 0, FAIL), (0.06, 1, FAIL))
    run = simulate(requests((0.0, 100, 3)), lost, SimOptions())
    assert run.reasons == ["prefill_failed"]
    assert run.first_token_s[0] == pytest.approx(0.06 + 0.11)


def test_without_prefill_workers_prefills_are_local_until_one_joins():
    load = requests((0.0, 100, 3), (1.0, 100, 3), (4.0, 100, 3))
    run = simulate(load, cluster(1, 1, (0.5, 0, FAIL), (1.5, 0, JOIN)), SimOptions())
    assert run.place.tolist() == [0, 1, 0]
    assert run.reasons[1] == "prefill_pool_empty"


def test_a_stream_fails_with_its_decode_worker_unless_it_may_migrate():
    # First token at 0.13 s, one more every 10 ms: 8 of 20 are there at 0.205 s.
    load, lost = requests((0.0, 100, 20)), cluster(1, 2, (0.205, 1, FAIL), (0.205, 2, JOIN))
    failed = simulate(load, lost, SimOptions(binding="round_robin"))
    assert failed.status.tolist() == [Status.FAILED.value]
    moved = simulate(load, lost, SimOptions(binding="round_robin", migration_limit=1))
    assert moved.status.tolist() == [Status.SERVED.value]
    assert (moved.migrations[0], moved.decode_worker[0]) == (1, 2)
    assert moved.first_token_s[0] == pytest.approx(0.13)
    # 108 tokens: the prefill worker finds 6 blocks of 16, computes 12, hands over 108.
    again_s = 0.205 + 0.022 + 0.0108
    assert moved.pulled_tokens[0] == 108
    assert moved.gap_max_s[0] == pytest.approx(again_s + 0.01 - 0.2)
    assert moved.finish_s[0] == pytest.approx(again_s + 12 * 0.01)


def test_a_decode_leg_whose_kv_is_lost_is_prefilled_again_once():
    # Pulled from 0.11 s to 0.12 s.
    load, lost = requests((0.0, 100, 3)), cluster(2, 1, (0.115, 0, FAIL))
    assert simulate(load, lost, SimOptions()).status.tolist() == [Status.FAILED.value]
    run = simulate(load, lost, SimOptions(migration_limit=2))
    assert (run.status[0], run.prefill_worker[0]) == (Status.SERVED.value, 1)
    assert run.pulled_s[0] == pytest.approx(0.115 + 0.11 + 0.01)


def test_kv_that_nobody_will_pull_stays_until_the_lease_ends():
    # 40 of 64 blocks are pinned for a decode worker that is gone: the next 40 have to wait.
    load = requests((0.0, 640, 3), (1.0, 640, 3))
    run = simulate(load, cluster(1, 2, (0.69, 1, FAIL)), SimOptions(binding="round_robin"))
    assert run.status.tolist() == [Status.FAILED.value, Status.SERVED.value]
    assert run.prefill_start_s[1] == pytest.approx(0.69 + 5.0)


def test_a_prefill_under_way_finds_another_decode_worker():
    load = requests((0.0, 100, 3))
    run = simulate(load, cluster(1, 2, (0.05, 1, FAIL)), SimOptions(binding="round_robin"))
    assert (run.status[0], run.decode_worker[0]) == (Status.SERVED.value, 2)
    assert run.ttft_s[0] == pytest.approx(0.13)


def test_sessions_lose_their_worker_and_their_history():
    load = two_rounds()
    events = ((0.5, 1, FAIL), (0.5, 1, JOIN))
    run = simulate(load, cluster(1, 1, *events), SimOptions())
    # 1.0 s after the first round its worker is not back yet.
    assert run.status.tolist() == [Status.SERVED.value, Status.REJECTED.value]
    later = replace(load, think_s=np.array([0.0, 4.0]))
    run = simulate(later, cluster(1, 1, *events), SimOptions())
    assert run.pulled_tokens.tolist() == [160, 180]


def test_without_a_decode_worker_requests_are_rejected():
    run = simulate(requests((1.0, 100, 3)), cluster(1, 1, (0.5, 1, FAIL)), SimOptions())
    assert run.status.tolist() == [Status.REJECTED.value]
    assert run.reasons == ["no_decode_worker"]


def test_a_joining_worker_serves_after_its_cold_start():
    load = requests((0.0, 16, 2), (1.9, 16, 2), (2.1, 16, 2))
    joins = cluster(0, 2, (0.0, 1, JOIN), absent=(1,))
    run = simulate(load, joins, SimOptions(binding="round_robin"))
    assert run.decode_worker.tolist() == [0, 0, 0]
    joins = cluster(0, 2, (0.0, 0, JOIN), absent=(0,))
    run = simulate(load, joins, SimOptions(binding="round_robin"))
    assert run.decode_worker.tolist() == [1, 1, 0]


def test_a_draining_decode_worker_finishes_what_it_has():
    load = requests((0.0, 100, 50), (0.2, 100, 3))
    run = simulate(load, cluster(1, 2, (0.15, 1, DRAIN)), SimOptions(binding="round_robin"))
    assert run.status.tolist() == [Status.SERVED.value] * 2
    assert run.decode_worker.tolist() == [1, 2]


def test_a_draining_prefill_worker_keeps_what_it_was_sent_and_gives_up_what_waits():
    options = SimOptions(placement="round_robin", in_flight_steps=1)
    load = requests((0.0, 400, 2), (0.01, 400, 2), (0.02, 400, 2), (0.03, 400, 2))
    run = simulate(load, cluster(2, 1, (0.05, 0, DRAIN)), options)
    # Rows 0 and 1 are in flight, rows 2 and 3 wait behind them; row 2 changes its worker.
    assert run.prefill_worker.tolist() == [0, 1, 1, 1]
    assert run.served.all()


def test_a_worker_changes_sides_when_it_is_through():
    load = requests((0.0, 100, 50), (1.0, 100, 3), (3.0, 100, 3))
    # Worker 2 decodes until 0.62 s, and is a prefill worker from 2.62 s on.
    switch = cluster(1, 2, (0.15, 2, SWITCH), (0.2, 0, FAIL))
    options = SimOptions(binding="round_robin")
    moved = simulate(load, cluster(1, 2, (0.15, 1, SWITCH), (0.2, 0, FAIL)), options)
    assert moved.place.tolist() == [0, 1, 0]
    assert moved.prefill_worker.tolist() == [0, -1, 1]
    idle = simulate(load, switch, options)
    assert idle.prefill_worker.tolist() == [0, -1, 2]


def test_a_join_calls_a_drain_off():
    load = requests((0.0, 100, 50), (0.3, 100, 3))
    run = simulate(load, cluster(1, 1, (0.15, 1, DRAIN), (0.2, 1, JOIN)), SimOptions())
    assert run.served.all()


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (ClusterEvent(1.0, 2, FAIL), "event 'fail' names worker 2 of 2"),
        (ClusterEvent(-1.0, 0, JOIN), "event 'join' has time -1.0"),
        (ClusterEvent(np.nan, 0, JOIN), "event 'join' has time nan"),
    ],
)
def test_an_event_that_cannot_be_is_one_clear_line(event, what):
    with pytest.raises(SimulationError) as error:
        ClusterSpec((ENGINE,), (COSTS,), (Worker(),), (Worker(),), events=(event,))
    assert what in str(error.value)


def test_the_random_cases_contain_what_they_are_meant_to_cover():
    seen: Counter[str] = Counter()

    @settings(
        max_examples=300,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(workload=workloads(), cluster=clusters(unsteady=True), chosen=options())
    def count(workload, cluster, chosen):
        run = simulate(workload, cluster, chosen)
        served = run.served
        seen["failed"] += (run.status == Status.FAILED.value).any()
        seen["no decode worker"] += "no_decode_worker" in run.reasons
        seen["migrated"] += (served & (run.migrations > 0)).any()
        seen["placed again"] += (served & (run.state.req["tries"] > 0)).any()
        seen["two losses"] += "prefill_failed" in run.reasons
        sides = np.arange(len(run.busy_s)) >= len(cluster.prefill)
        seen["changed sides"] += (run.state.wrk["role"] != sides).any()

    count()
    assert all(count >= 5 for count in seen.values()), seen
