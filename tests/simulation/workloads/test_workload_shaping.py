# SPDX-License-Identifier: Apache-2.0
"""Changes to a workload keep what they do not change, and its statistics."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.simulation.traces import TraceError
from controller.simulation.workloads.agents import AgentTrace, agent_sessions
from controller.simulation.workloads.closed_loop import closed_loop
from controller.simulation.workloads.rollouts import rollouts
from controller.simulation.workloads.rows import single_rounds
from controller.simulation.workloads.shaping import (
    concatenate,
    limit_duration,
    limit_requests,
    overlay,
    scale_rate,
)
from controller.simulation.workloads.statistics import workload_stats
from controller.simulation.workloads.workload import Workload, engine_block_ids, validate

pytestmark = pytest.mark.unit


def sessions(seed: int = 1) -> Workload:
    return agent_sessions(AgentTrace.TOOLBENCH, 1.0, 30.0, seed, shared_tokens=64)


def lone(*times: float) -> Workload:
    ones = np.ones(len(times), np.int64)
    return single_rounds("lone", np.array(times), 10 * ones, ones)


@given(st.floats(min_value=0.01, max_value=100))
def test_rate_scaling_moves_arrivals_and_nothing_else(factor: float) -> None:
    w = sessions()
    faster = scale_rate(w, factor)
    assert np.allclose(faster.arrival_s * factor, w.arrival_s, equal_nan=True)
    assert faster.think_s is w.think_s
    assert faster.prompt_tokens is w.prompt_tokens
    validate(faster)


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf])
def test_an_impossible_rate_scale_is_refused(factor: float) -> None:
    with pytest.raises(TraceError, match="give a number above 0"):
        scale_rate(sessions(), factor)


@given(st.floats(min_value=1, max_value=40))
def test_a_duration_keeps_whole_sessions(duration_s: float) -> None:
    w = sessions()
    begun = w.arrival_s[w.heads] < duration_s
    if not begun.any():
        return
    cut = limit_duration(w, duration_s)
    assert np.array_equal(cut.prompt_tokens, w.prompt_tokens[begun])
    assert np.array_equal(cut.history_tokens, w.history_tokens[begun])


def test_a_request_limit_keeps_the_first_rows() -> None:
    w = sessions()
    cut = limit_requests(w, 7)
    assert np.array_equal(cut.prompt_tokens, w.prompt_tokens[:7])
    assert np.array_equal(cut.after, w.after[:7])
    with pytest.raises(TraceError, match="no request is left"):
        limit_requests(w, 0)


def test_a_closed_loop_survives_a_duration() -> None:
    w = closed_loop(3, 20, 0)
    assert len(limit_duration(w, 1.0)) == 20


def test_parts_laid_over_each_other_stay_apart_and_in_order() -> None:
    a, b = sessions(1), sessions(2)
    both = overlay("both", [a, b], [0.0, 10.5], separate_tenants=True)
    assert len(both) == len(a) + len(b)
    assert np.array_equal(both.prompt_tokens[both.tenant == 0], a.prompt_tokens)
    assert np.array_equal(both.prompt_tokens[both.tenant == 1], b.prompt_tokens)
    late = both.arrival_s[both.tenant == 1]
    assert np.allclose(late, b.arrival_s + 10.5, equal_nan=True)
    assert not set(both.session[both.tenant == 0]) & set(both.session[both.tenant == 1])


def head_blocks(w: Workload, tenant: int) -> set[int]:
    rows = np.flatnonzero((w.tenant == tenant) & (w.round == 0))
    return {int(block) for row in rows for block in engine_block_ids(w, int(row), 16)[:4]}


def test_parts_share_blocks_only_when_asked() -> None:
    parts = [sessions(1), sessions(2)]
    for share in (False, True):
        both = overlay("b", parts, [0, 0], separate_tenants=True, share_blocks=share)
        assert (head_blocks(both, 0) == head_blocks(both, 1)) is share


def test_parts_behind_each_other_start_where_the_last_one_was_given_to_end() -> None:
    w = concatenate("phases", [lone(0, 4), lone(1, 2)], [5.0, 5.0])
    assert w.arrival_s.tolist() == [0, 4, 6, 7]
    assert w.tenant.tolist() == [0, 0, 0, 0]


def test_blocks_of_two_sizes_do_not_mix() -> None:
    other = replace(rollouts(2, 2, 0), block_tokens=32)
    with pytest.raises(TraceError, match=r"parts have shared blocks of \[16, 32\] tokens"):
        overlay("mixed", [rollouts(2, 2, 0), other], [0, 0])


def test_statistics_of_a_workload_by_hand() -> None:
    w = single_rounds(
        "t", np.array([0.0, 0.5, 0.9, 4.0]), np.array([10, 20, 30, 60]), np.array([1, 2, 3, 4])
    )
    stats = workload_stats(w)
    gaps = np.array([0.5, 0.4, 3.1])
    assert (stats.requests, stats.sessions, stats.span_s, stats.rate) == (4, 4, 4.0, 1.0)
    assert stats.gap_cv == pytest.approx(gaps.std() / gaps.mean())
    assert stats.most_in_1_s == 3
    assert (stats.prompt.mean, stats.prompt.p50, stats.prompt.longest) == (30, 25, 60)
    assert stats.prompt.p95 == pytest.approx(55.5)
    assert (stats.history_share, stats.block_reuse) == (0.0, None)


def test_statistics_of_reuse_and_of_a_single_instant() -> None:
    stats = workload_stats(rollouts(10, 4, 0))
    assert stats.block_reuse == pytest.approx(0.75)
    assert (stats.rate, stats.gap_cv, stats.most_in_1_s) == (None, None, 40)
    assert workload_stats(sessions()).history_share > 0.3
