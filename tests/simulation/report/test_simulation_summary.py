# SPDX-License-Identifier: Apache-2.0
"""Figures of a run against arithmetic by head."""

from __future__ import annotations

import numpy as np
import pytest

from controller.costs.tables import linear_tables
from controller.engine import EngineSpec
from controller.simulation.cluster import SimOptions, Simulation, simulate, uniform_cluster
from controller.simulation.report.chrome import chrome_events
from controller.simulation.report.parts import ttft_parts
from controller.simulation.report.series import run_sampled, time_series
from controller.simulation.report.summary import Cohort, summarize
from controller.simulation.traces import TraceError
from controller.simulation.workloads.rows import single_rounds
from controller.types import Slo

# The first simulation compiles the kernels.
pytestmark = [pytest.mark.unit, pytest.mark.timeout(900)]

ENGINE = EngineSpec(block_size=16, num_blocks=600, max_num_batched_tokens=512, max_num_seqs=16)
# 10 ms a step, 1 ms a prompt token, 0.1 ms a KV token moved.
COSTS = linear_tables(0.010, 0.0, 0.0, 0.001, 0.0, 512, 0.0, 1.0, 10_000.0)
CLUSTER = uniform_cluster(1, 1, ENGINE, COSTS)


def load(*rows: tuple[float, int, int]):
    arrival, prompt, output = zip(*rows, strict=True)
    return single_rounds("rows", np.array(arrival, float), np.array(prompt), np.array(output))


def options(ttft_ms: float = 200.0, itl_ms: float = 15.0, **fields) -> SimOptions:
    return SimOptions(placement="always_remote", slo=Slo(ttft_ms, itl_ms), **fields)


def test_the_parts_of_a_remote_ttft():
    # Prefill 110 ms, transfer 10 ms, one decode step of 10 ms; the second one waits for a step
    # of 110 ms that began 10 ms before, and its 50 tokens take 60 ms.
    result = simulate(load((1.0, 100, 3), (1.01, 50, 3)), CLUSTER, options())
    parts = ttft_parts(result, CLUSTER)
    assert parts.queue_s == pytest.approx([0.0, 0.1])
    assert parts.prefill_s == pytest.approx([0.11, 0.06])
    assert parts.transfer_s == pytest.approx([0.01, 0.005])
    assert parts.admission_s[0] == pytest.approx(0.01)
    total = parts.queue_s + parts.prefill_s + parts.transfer_s + parts.admission_s
    assert total == pytest.approx(result.ttft_s)


def test_a_local_prefill_has_neither_transfer_nor_admission():
    alone = uniform_cluster(0, 1, ENGINE, COSTS)
    result = simulate(load((0.0, 100, 3)), alone, options())
    parts = ttft_parts(result, alone)
    assert (parts.transfer_s[0], parts.admission_s[0]) == (0.0, 0.0)
    assert parts.prefill_s[0] == pytest.approx(0.11)


def test_the_p99_gap_fails_where_the_mean_passes():
    # Co-located: the second prompt's step of 310 ms stands in the first one's stream of 10 ms
    # steps, so its mean gap is (99 * 10 + 310) / 100 = 13 ms.
    alone = uniform_cluster(0, 1, ENGINE, COSTS)
    result = simulate(load((0.0, 100, 101), (0.5, 300, 1)), alone, options(400.0))
    summary = summarize(result, alone)
    assert result.itl_s[0] == pytest.approx(0.013, abs=1e-4)
    assert summary.attainment == 1.0
    # 100 gaps, one of them long: the p99 interpolates a hundredth of the way up to it.
    assert result.gap_p99_s[0] == pytest.approx(0.010 + 0.01 * 0.3)
    assert summarize(simulate(result.workload, alone, options(400.0, 12.9)), alone).attainment < 1
    two = load((0.0, 100, 101), (0.5, 300, 1), (0.9, 300, 1))
    result = simulate(two, alone, options(400.0, 20.0))
    summary = summarize(result, alone)
    assert summary.attainment == 1.0
    assert summary.attainment_p99_gap == pytest.approx(2 / 3)


def test_gaps_over_all_tokens_count_each_token_once():
    # 99 gaps of 10 ms in one stream, then a prompt of 300 tokens stands in it once; by hand.
    alone = uniform_cluster(0, 1, ENGINE, COSTS)
    result = simulate(load((0.0, 100, 101), (0.5, 300, 2)), alone, options())
    found = summarize(result, alone).token_gap_ms
    by_hand = np.array([10.0] * 100 + [310.0])
    assert found.count == 101
    assert found.mean == pytest.approx(by_hand.mean())
    assert found.p99 == pytest.approx(np.percentile(by_hand, 99))
    assert found.max == pytest.approx(310.0)


def test_misses_count_in_attainment_and_not_in_times():
    # The second one fits no worker, the third one does not end in time.
    rows = load((0.0, 100, 3), (0.1, 20_000, 3), (0.9, 100, 50))
    result = simulate(rows, CLUSTER, options(until_s=1.2))
    summary = summarize(result, CLUSTER)
    assert (summary.served, summary.rejected, summary.unfinished) == (1, 1, 1)
    assert summary.attainment == pytest.approx(1 / 3)
    assert summary.ttft_ms.count == 1
    assert summary.span_s == pytest.approx(1.2)
    assert summary.goodput_per_s == pytest.approx(1 / 1.2)


def test_a_request_without_a_first_token_waits_until_the_end():
    result = simulate(load((0.0, 500, 3), (0.0, 500, 3)), CLUSTER, options(until_s=0.6))
    assert summarize(result, CLUSTER).longest_wait_ms == pytest.approx(600.0)


def test_a_cohort_that_nobody_belongs_to_is_refused():
    result = simulate(load((0.0, 100, 3)), CLUSTER, options())
    with pytest.raises(TraceError, match="no request begins from 5 to 6 s"):
        summarize(result, CLUSTER, Cohort(5.0, 6.0))


def test_sampling_changes_nothing_and_busy_time_adds_up():
    rows = load(*((0.05 * i, 40 + 7 * i, 5 + i) for i in range(30)))
    whole = simulate(rows, CLUSTER, options())
    simulation = Simulation(rows, CLUSTER, options())
    samples = run_sampled(simulation, 0.013)
    pieces = simulation.result()
    assert np.array_equal(whole.finish_s, pieces.finish_s)
    series = time_series(pieces, samples)
    for pool, busy_s in zip(("prefill", "decode"), pieces.busy_s, strict=True):
        used = series[f"utilisation_{pool}"]
        assert used.min() >= 0 and used.max() <= 1 + 1e-9
        assert used.sum() * 0.013 == pytest.approx(busy_s)
    assert series["in_flight"][-1] == 0
    assert series["first_tokens"].sum() == 30


def test_spans_end_before_the_next_one_on_their_row():
    rows = load(*((0.01 * i, 60, 9) for i in range(20)))
    result = simulate(rows, CLUSTER, options())
    spans = [event for event in chrome_events(result, CLUSTER) if event["ph"] == "X"]
    last: dict[tuple[int, int], float] = {}
    for span in sorted(spans, key=lambda span: span["ts"]):
        row = span["pid"], span["tid"]
        assert span["ts"] >= last.get(row, 0.0)
        last[row] = span["ts"] + span["dur"]
    decodes = [span for span in spans if span["name"] == "decode"]
    assert len(decodes) == 20
    assert decodes[0]["ts"] + decodes[0]["dur"] == pytest.approx(result.finish_s[0] * 1e6, abs=0.01)
