# SPDX-License-Identifier: Apache-2.0
"""What a caller of the simulator relies on, beside exactness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cluster_kit import COSTS, ENGINE, requests, two_rounds

from controller.costs.tables import linear_tables
from controller.simulation.cluster import (
    ClusterSpec,
    SimOptions,
    Simulation,
    SimulationError,
    Status,
    Worker,
    build,
    simulate,
    uniform_cluster,
)
from controller.simulation.cluster.chunks import pack_schedule, scheduled
from controller.simulation.cluster.token_gaps import token_gaps
from controller.simulation.workloads.rows import conversations, single_rounds, template_heads

# The first one compiles the kernels: a minute of processor time.
pytestmark = [pytest.mark.unit, pytest.mark.timeout(900)]


def test_the_parts_of_a_remote_ttft_add_up():
    # 100 tokens: 0.11 s prefill, 0.01 s transfer, then one decode step of 0.01 s.
    result = simulate(requests((1.0, 100, 3)), uniform_cluster(1, 1, ENGINE, COSTS), SimOptions())
    assert result.prefill_end_s[0] == pytest.approx(1.11)
    assert result.pulled_s[0] == pytest.approx(1.12)
    assert result.ttft_s[0] == pytest.approx(0.13)
    assert result.itl_s[0] == pytest.approx(0.01)


def test_transfers_over_one_link_wait_for_each_other():
    # Both prefills share one step (0.11 s); the second transfer (0.005 s) follows the first.
    load = requests((0.0, 50, 2), (0.0, 50, 2))
    alone = uniform_cluster(1, 1, ENGINE, COSTS, contention=False)
    shared = uniform_cluster(1, 1, ENGINE, COSTS)
    assert np.ptp(simulate(load, alone, SimOptions()).pulled_s) == 0
    assert np.ptp(simulate(load, shared, SimOptions()).pulled_s) == pytest.approx(0.005)


def test_a_session_returns_to_its_decode_worker_and_finds_its_history():
    load = two_rounds()
    result = simulate(load, uniform_cluster(2, 3, ENGINE, COSTS), SimOptions())
    assert result.decode_worker[0] == result.decode_worker[1]
    assert result.arrival_s[1] == pytest.approx(result.finish_s[0] + 1.0)
    # 160 of the 180 prompt tokens are there already.
    assert result.pulled_tokens.tolist() == [160, 20]


def test_what_does_not_fit_is_rejected_and_its_later_rounds_never_come():
    load = conversations(
        "huge", np.zeros(1), np.array([2]), np.array([20_000, 16]), np.array([4, 4]), np.zeros(2)
    )
    result = simulate(load, uniform_cluster(1, 1, ENGINE, COSTS), SimOptions())
    assert result.status.tolist() == [Status.REJECTED.value, Status.NEVER_ISSUED.value]
    assert np.isnan(result.finish_s).all()


def test_a_run_that_ends_early_leaves_requests_unfinished():
    load = requests((0.0, 100, 3), (0.0, 100, 100))
    options = SimOptions(until_s=0.5)
    result = simulate(load, uniform_cluster(1, 1, ENGINE, COSTS), options)
    assert result.status.tolist() == [Status.SERVED.value, Status.UNFINISHED.value]


def test_running_in_pieces_changes_nothing():
    rng = np.random.default_rng(0)
    load = requests(*[(float(t), 200, 50) for t in np.sort(rng.uniform(0, 5, 60))])
    cluster = uniform_cluster(2, 2, ENGINE, COSTS)
    options = SimOptions(placement="least_ttft", seed=3)
    whole = simulate(load, cluster, options)
    pieces = Simulation(load, cluster, options)
    for second in range(1, 40):
        pieces.advance(second / 2)
    pieces.advance()
    assert np.array_equal(whole.finish_s, pieces.result().finish_s)
    assert whole.served.all()


def test_the_cost_error_moves_decisions_and_is_drawn_from_the_seed():
    rng = np.random.default_rng(0)
    load = requests(*[(float(t), 300, 20) for t in np.sort(rng.uniform(0, 8, 60))])
    cluster = uniform_cluster(2, 2, ENGINE, COSTS)

    def places(seed: int, error: float) -> list[int]:
        options = SimOptions(placement="always_remote", seed=seed, cost_error=error)
        return simulate(load, cluster, options).prefill_worker.tolist()

    assert places(1, 0.5) == places(1, 0.5)
    assert places(1, 0.5) != places(1, 0.0)


def test_a_cap_on_local_chunks_bounds_the_gap_of_running_decodes():
    load = requests((0.0, 16, 60), (0.1, 500, 2))
    cluster = uniform_cluster(0, 1, ENGINE, COSTS)
    free = simulate(load, cluster, SimOptions())
    capped = simulate(load, cluster, SimOptions(local_chunk_tokens=50))
    assert free.gap_max_s[0] == pytest.approx(0.51)
    assert capped.gap_max_s[0] == pytest.approx(0.06)


def test_a_chunk_schedule_counts_down_its_sizes_and_keeps_the_last():
    plan = pack_schedule(11, (1, 0, 2))
    assert [scheduled.py_func(plan, done) for done in range(5)] == [2048, 512, 512, 512, 512]


def test_history_that_only_the_decode_worker_holds_is_read_before_the_increment_is_computed():
    load = two_rounds()
    # The first round is prefilled on worker 0, the second on worker 1, in turn.
    options = SimOptions(placement="round_robin", transfer="history_read")
    run = simulate(load, uniform_cluster(2, 1, ENGINE, COSTS), options)
    assert run.read_tokens.tolist() == [0, 160]
    assert run.prefill_start_s[1] == pytest.approx(run.sent_s[1] + 0.016)
    # 20 of the 180 prompt tokens are left to compute, and go back.
    assert run.prefill_end_s[1] == pytest.approx(run.prefill_start_s[1] + 0.03)
    assert run.pulled_tokens.tolist() == [160, 20]
    stock = simulate(load, uniform_cluster(2, 1, ENGINE, COSTS), SimOptions("round_robin"))
    assert stock.prefill_end_s[1] == pytest.approx(stock.sent_s[1] + 0.19)
    assert stock.read_tokens.tolist() == [0, 0]


def test_speculation_brings_several_tokens_a_step_and_gaps_of_zero_between_them():
    engine = replace(ENGINE, verified_tokens=4, emitted_tokens=2.5)
    run = simulate(requests((0.0, 100, 11)), uniform_cluster(0, 1, engine, COSTS), SimOptions())
    # The prefill's token, then 2 + 3 + 2 + 3 in four steps of 10 ms.
    assert run.first_token_s[0] == pytest.approx(0.11)
    assert run.finish_s[0] == pytest.approx(0.11 + 4 * 0.01)
    assert run.itl_s[0] == pytest.approx(0.004)
    assert run.gap_max_s[0] == pytest.approx(0.01)
    gaps_s, weights = token_gaps(run.state)
    assert weights[gaps_s == 0].sum() == 6 and weights.sum() == 10
    assert run.counters["output_tokens"].tolist() == [11]


def test_what_arrives_during_a_step_that_has_a_successor_waits_for_that_one():
    load = requests((0.0, 100, 9), (0.115, 20, 2))
    first_s = {
        ahead: simulate(
            load,
            uniform_cluster(0, 1, replace(ENGINE, async_scheduling=ahead), COSTS),
            SimOptions(),
        ).first_token_s[1]
        for ahead in (False, True)
    }
    # Steps end at 0.11, 0.12, 0.13 s; the one with the new prompt takes 0.03 s.
    assert first_s[False] == pytest.approx(0.12 + 0.03)
    assert first_s[True] == pytest.approx(0.13 + 0.03)


def test_a_batch_that_the_router_has_not_heard_of_does_not_count():
    # Eight streams at 50 ms a sequence make a local prefill of three chunks the slower one.
    costs = linear_tables(0.010, 0.050, 0.0, 0.001, 0.0, 512, 0.0, 1.0, 10_000.0)
    load = requests(*[(0.0, 16, 200)] * 8, (3.0, 1500, 2))

    def last(delay_s: float) -> str:
        options = SimOptions("least_ttft", report_delay_s=delay_s)
        return simulate(load, uniform_cluster(1, 1, ENGINE, costs), options).reasons[-1]

    assert (last(0.0), last(10.0)) == ("least_ttft_remote", "least_ttft_local")


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda: SimOptions(placement="best"), "placement is 'best'; known: ampd"),
        (lambda: SimOptions(transfer="push"), "transfer is 'push'; known: recompute"),
        (lambda: SimOptions(migration_limit=-1), "migration_limit must be at least 0"),
        (lambda: SimOptions(cost_bias=0), "cost_bias above 0"),
        (lambda: ClusterSpec((ENGINE,), (COSTS,), (), ()), "no decode worker"),
        (lambda: ClusterSpec((ENGINE,), (COSTS,), (), (Worker(1, 0),)), "names engine 1"),
    ],
)
def test_wrong_values_are_one_clear_line(wrong, what):
    with pytest.raises(SimulationError) as error:
        wrong()
    assert what in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("engine", "options", "what"),
    [
        ({"num_blocks": 1 << 31}, {}, "engine: num_blocks is 2,147,483,648; the simulator counts"),
        ({"block_size": 1 << 21}, {}, "engine: block_size is 2,097,152"),
        ({"max_num_seqs": 1 << 21}, {}, "engine: max_num_seqs is 2,097,152"),
        ({}, {"in_flight_steps": 1 << 31}, "router: in_flight_steps is 2,147,483,648"),
        ({"max_num_seqs": 1 << 20}, {}, "400 workers with up to 1,048,576 sequences each need"),
    ],
)
def test_what_the_simulator_cannot_count_to_is_one_clear_line(engine, options, what):
    cluster = uniform_cluster(100, 300, replace(ENGINE, **engine), COSTS)
    with pytest.raises(SimulationError) as error:
        simulate(requests((0.0, 100, 3)), cluster, SimOptions(**options))
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_times_beyond_the_clock_do_not_stop_it():
    # A step takes 300 years: all its ends are one instant, and the order of things stays.
    slow = linear_tables(1e10, 0.0, 0.0, 0.001, 0.0, 512, 0.0, 1.0, 10_000.0)
    cluster = uniform_cluster(1, 1, ENGINE, slow)
    result = simulate(requests((0.0, 100, 3), (1.0, 100, 3)), cluster, SimOptions(until_s=1e12))
    assert result.served.all()
    assert (np.diff([result.first_token_s, result.finish_s], axis=0) > 1e10).all()


def test_hits_do_not_depend_on_how_many_look_ups_are_remembered(monkeypatch):
    rng = np.random.default_rng(3)
    heads = template_heads(rng.integers(0, 12, 300), rng.integers(16, 200, 12), 16)
    load = single_rounds(
        "shared",
        np.sort(rng.uniform(0, 30, 300)),
        rng.integers(200, 400, 300),
        rng.integers(2, 30, 300),
        heads=heads,
    )
    cluster = uniform_cluster(3, 2, ENGINE, COSTS)
    many = simulate(load, cluster, SimOptions("least_ttft"))
    monkeypatch.setattr(build, "_front_rows", lambda cut, workers: 1)
    one = simulate(load, cluster, SimOptions("least_ttft"))
    assert many.hit_tokens.sum() > 0
    assert np.array_equal(many.hit_tokens, one.hit_tokens)
    assert np.array_equal(many.finish_s, one.finish_s)
