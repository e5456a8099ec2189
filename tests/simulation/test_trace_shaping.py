# SPDX-License-Identifier: Apache-2.0
"""Scaling, cutting and spreading keep what they do not change."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.simulation.trace_shaping import (
    Shaping,
    limit_duration,
    limit_prompt,
    limit_requests,
    scale_lengths,
    scale_rate,
    shape_trace,
    spread_bins,
    with_prompts,
)
from controller.simulation.traces import (
    BLOCK_TOKENS,
    Trace,
    TraceError,
    TraceRequest,
    arrival_s,
    clock_bin_s,
    trace_stats,
)

pytestmark = pytest.mark.unit


def build(*sessions: tuple[float, list[int]]) -> Trace:
    """Sessions given as (arrival, new tokens of each round); every answer has 10 tokens."""
    line = 0
    built = []
    for number, (at_s, lengths) in enumerate(sessions):
        rounds = []
        for turn, new in enumerate(lengths):
            line += 1
            rounds.append(
                TraceRequest(
                    arrival_s=None if turn else at_s,
                    session_id=f"s{number}",
                    round=turn,
                    think_s=1.0 if turn else 0.0,
                    prompt_tokens=0,
                    new_tokens=new,
                    output_tokens=10,
                    block_ids=tuple(range(line * 1000, line * 1000 + -(-new // BLOCK_TOKENS))),
                    line=line,
                )
            )
        built.append(with_prompts(rounds))
    return Trace("t", tuple(built))


TRACES = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=1000),
        st.lists(st.integers(min_value=1, max_value=5000), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=8,
).map(lambda sessions: build(*sorted(sessions)))
FACTORS = st.floats(min_value=0.01, max_value=50)


def lines(trace: Trace) -> list[int]:
    return [request.line for request in trace.requests()]


@given(TRACES, FACTORS)
def test_rate_scaling_keeps_order_counts_and_think_times(trace: Trace, factor: float) -> None:
    scaled = scale_rate(trace, factor)
    arrivals = [arrival_s(session) for session in scaled.sessions]
    assert arrivals == sorted(arrivals)
    assert lines(scaled) == lines(trace)
    assert [r.think_s for r in scaled.requests()] == [r.think_s for r in trace.requests()]


@given(TRACES, FACTORS, FACTORS)
def test_length_scaling_keeps_counts_and_cuts_blocks_consistently(
    trace: Trace, prompt: float, output: float
) -> None:
    scaled = scale_lengths(trace, prompt, output)
    assert lines(scaled) == lines(trace)
    for before, after in zip(trace.requests(), scaled.requests(), strict=True):
        assert after.new_tokens >= 1
        assert after.output_tokens >= 1
        assert len(after.block_ids) <= -(-after.new_tokens // BLOCK_TOKENS)
        assert after.block_ids == before.block_ids[: len(after.block_ids)]
        if prompt <= 1:
            assert len(after.block_ids) == -(-after.new_tokens // BLOCK_TOKENS)


@given(TRACES, st.integers(min_value=1, max_value=20))
def test_a_limit_keeps_the_first_requests(trace: Trace, limit: int) -> None:
    assert lines(limit_requests(trace, limit)) == lines(trace)[:limit]


def test_scaled_prompts_contain_the_scaled_history() -> None:
    scaled = scale_lengths(build((0, [1000, 100])), 0.5, 2.0)
    first, second = scaled.sessions[0]
    assert (first.prompt_tokens, first.output_tokens) == (500, 20)
    assert second.prompt_tokens == 500 + 20 + 50


def test_a_session_ends_before_its_first_long_prompt() -> None:
    trace = build((0, [100, 500, 10]), (1, [700]), (2, [600]))
    cut = limit_prompt(trace, 609)
    assert [len(session) for session in cut.sessions] == [1, 1]
    assert lines(cut) == [1, 5]


def test_duration_cuts_arrivals_after_rate_scaling() -> None:
    trace = build((0, [1]), (10, [1, 1]), (20, [1]))
    assert lines(limit_duration(trace, 20)) == [1, 2, 3]
    assert lines(shape_trace(trace, Shaping(rate=2, duration_s=10))) == [1, 2, 3]


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(TraceError, match="t: no request is left"):
        shape_trace(build((0, [100])), Shaping(max_prompt=50))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"rate": math.nan},
        {"prompt_scale": -1},
        {"output_scale": math.inf},
        {"duration_s": 0},
        {"limit": 0},
        {"max_prompt": -5},
    ],
)
def test_impossible_shaping_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(TraceError, match="give a number above 0"):
        Shaping(**wrong)


def quantised() -> Trace:
    """4 sessions at each of 20 stamps about 3 s apart, one bin empty."""
    stamps = [3.0 * n + 0.002 * (n % 2) for n in range(21) if n != 7]
    return build(*((stamp, [100]) for stamp in stamps for _ in range(4)))


def test_a_quantised_clock_is_seen_and_a_fine_one_is_not() -> None:
    assert clock_bin_s(quantised()) == pytest.approx(3.0, abs=0.01)
    assert clock_bin_s(build(*((0.37 * n, [1]) for n in range(100)))) is None
    assert clock_bin_s(build(*((0.0, [1]) for _ in range(100)))) is None


def test_batches_off_any_grid_are_no_quantised_clock() -> None:
    stamps = [float(n * n) for n in range(20)]
    assert clock_bin_s(build(*((stamp, [1]) for stamp in stamps for _ in range(4)))) is None


def test_spreading_keeps_each_session_in_its_bin_and_follows_the_seed() -> None:
    trace = quantised()
    spread = spread_bins(trace, seed=3)
    before = {session[0].line: arrival_s(session) for session in trace.sessions}
    after = {session[0].line: arrival_s(session) for session in spread.sessions}
    assert after.keys() == before.keys()
    assert all(0 <= after[line] - before[line] < 3.01 for line in before)
    assert [arrival_s(s) for s in spread.sessions] == sorted(after.values())
    assert clock_bin_s(spread) is None
    assert spread == spread_bins(trace, seed=3)
    assert spread != spread_bins(trace, seed=4)


def test_spreading_leaves_a_fine_clock_alone() -> None:
    trace = build((0, [1]), (0.1, [1]))
    assert spread_bins(trace, seed=0) == trace


def test_statistics_are_worked_by_hand() -> None:
    stats = trace_stats(build((0, [100, 50]), (4, [200])))
    # prompts 100, 100 + 10 + 50, 200
    assert stats.requests == 3
    assert stats.sessions == 2
    assert stats.prompt_tokens_mean == pytest.approx(460 / 3)
    assert stats.prompt_tokens_per_s == pytest.approx(460 / 4)
    assert stats.new_tokens_per_s == pytest.approx(350 / 4)
    assert trace_stats(build((2, [100]))).prompt_tokens_per_s is None
