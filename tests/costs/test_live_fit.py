# SPDX-License-Identifier: Apache-2.0
"""Fitting while a worker serves: accuracy, cold starts, changes of speed, bounded memory."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_kit import Faults, Traffic, dense70b, errors, feed, passes

from controller.costs.capture_sizes import fit_finding_sizes
from controller.costs.fit import FitOptions
from controller.costs.live_contrast import contrast
from controller.costs.live_drift import onset
from controller.costs.live_fit import LiveFit, LiveOptions
from controller.costs.live_passes import ColdStart, LeftOut, Pass
from controller.costs.live_reservoir import Reservoir
from controller.costs.model import TableCost
from controller.runtime.resources import read_profile

pytestmark = pytest.mark.unit

TRAFFIC = Traffic()
HARD = Faults(noise=0.05, outliers=0.02, cold_passes=20, first_of_shape=20.0)


def fitter(**changes):
    return LiveFit(LiveOptions(**changes), FitOptions())


def a_pass(batch=4, chunk=0, prefills=0, history=0, **changes):
    fields = {"worker": "w", "at_s": 1.0, "context": 4000, "wall_s": 0.02} | changes
    return Pass(batch=batch, prefills=prefills, chunk=chunk, history=history, **fields)


def seconds_until(live, stream, truth, traffic, slow, since_s, within=0.05):
    """Seconds after `since_s` from which on every prediction is within 5 %."""
    reached = None
    for one in stream:
        live.observe(one)
        if live.due(one.at_s):
            live.refit(one.at_s)
            good = one.at_s >= since_s and errors(live, truth, traffic, slow).max() <= within
            if not good:
                reached = None
            elif reached is None:
                reached = one.at_s - since_s
    return reached


def test_two_minutes_of_clean_traffic_give_the_worker_s_costs_back():
    live = fitter()
    feed(live, passes(dense70b(), TRAFFIC))
    assert errors(live, dense70b(), TRAFFIC).max() < 0.02


@pytest.mark.parametrize("seed", range(3))
def test_noise_outliers_and_cold_starts_leave_every_prediction_within_five_percent(seed):
    traffic = replace(TRAFFIC, seed=seed)
    live = fitter(seed=seed)
    feed(live, passes(dense70b(), traffic, HARD))
    assert errors(live, dense70b(), traffic).max() < 0.05
    assert live.state().drifts == ()


@pytest.mark.parametrize("profile", ["llama31_70b_tp4_h100", "mixtral_8x7b_tp2_h100"])
def test_workers_that_are_not_linear_are_learned_under_noise_too(profile):
    truth = read_profile(profile).cost_model()
    live = LiveFit(LiveOptions(), FitOptions(), fit_finding_sizes)
    feed(live, passes(truth, TRAFFIC, replace(HARD, noise=0.03)))
    found = errors(live, truth, TRAFFIC)
    assert np.median(found) < 0.02 and np.percentile(found, 95) < 0.05
    assert live.state().drifts == ()


@pytest.mark.parametrize("faults", [Faults(), HARD], ids=["clean", "hard"])
def test_a_slowdown_is_followed_within_a_minute_and_so_is_its_end(faults):
    traffic = replace(TRAFFIC, seconds=300.0)
    faults = replace(faults, slow_at_s=120.0, fast_at_s=210.0)
    stream = passes(dense70b(), traffic, faults)
    live = fitter()
    feed(live, (one for one in _until(stream, 120.0)))
    slow_s = seconds_until(live, _until(stream, 205.0), dense70b(), TRAFFIC, 1.5, 120.0)
    assert slow_s is not None and slow_s < 60
    fast_s = seconds_until(live, stream, dense70b(), TRAFFIC, 1.0, 210.0)
    assert fast_s is not None and fast_s < 60
    assert [round(ratio, 1) for _, ratio in live.state().drifts] == [1.5, 0.7]


def test_a_caller_that_refits_late_does_not_count_a_change_twice():
    live = fitter()
    feed(live, passes(dense70b(), TRAFFIC))
    slow = Faults(slow_at_s=0.0)
    last_s = 120.0
    for one in passes(dense70b(), replace(TRAFFIC, seed=1, seconds=40.0), slow, start_s=120.0):
        live.observe(one)
        if one.at_s - last_s > 5.0 and live.due(one.at_s):
            live.refit(one.at_s)
            last_s = one.at_s
    assert errors(live, dense70b(), TRAFFIC, slow=1.5).max() < 0.05
    assert [ratio for _, ratio in live.state().drifts] == [pytest.approx(1.5, rel=0.01)]


def test_after_a_slowdown_what_the_traffic_no_longer_visits_is_right_too():
    live = fitter()
    feed(live, passes(dense70b(), TRAFFIC, HARD))
    narrow = replace(TRAFFIC, seed=5, max_batch=4, max_prompt=500, max_history=64, seconds=60.0)
    slow = replace(HARD, cold_passes=0, first_of_shape=1.0, slow_at_s=0.0)
    feed(live, passes(dense70b(), narrow, slow, start_s=120.0))
    assert errors(live, dense70b(), TRAFFIC, slow=1.5).max() < 0.05


def test_traffic_of_another_kind_is_no_change_of_speed():
    live = fitter()
    small = replace(TRAFFIC, max_batch=4, max_prompt=300, max_history=64, seconds=60.0)
    feed(live, passes(dense70b(), small, Faults(noise=0.05)))
    feed(live, passes(dense70b(), replace(TRAFFIC, seed=1), Faults(noise=0.05), start_s=60.0))
    assert live.state().drifts == ()
    assert errors(live, dense70b(), TRAFFIC).max() < 0.05


@pytest.mark.parametrize("seed", [1, 3])
def test_traffic_that_moves_to_where_the_fit_is_wrong_is_no_change_of_speed(seed):
    # Without its graph sizes a mixture of experts is never fitted well between small batches.
    truth = read_profile("mixtral_8x7b_tp2_h100").cost_model()
    traffic = Traffic(seconds=60.0, max_batch=16, mixed=0.02, seed=seed)
    live = fitter()
    feed(live, passes(truth, traffic, Faults(noise=0.03)))
    assert live.state().drifts == ()


def test_a_change_of_speed_is_measured_to_a_few_per_cent_though_the_fit_is_wrong():
    truth = read_profile("mixtral_8x7b_tp2_h100").cost_model()
    traffic = Traffic(seconds=120.0, max_batch=32, mixed=0.02, seed=1)
    live = fitter()
    feed(live, passes(truth, traffic, Faults(slow_at_s=60.0)))
    assert [ratio for _, ratio in live.state().drifts] == [pytest.approx(1.5, rel=0.05)]


def test_only_earlier_passes_of_the_same_kind_of_step_are_compared():
    before = [(a_pass(at_s=float(i), wall_s=0.02), 0.3) for i in range(3)]
    known = {before[0][0].stratum: before}
    since = [(a_pass(at_s=10.0 + i, wall_s=0.03), 0.7) for i in range(10)]
    assert contrast(since, known, 5.0) == pytest.approx(0.4)
    assert contrast(since[:9], known, 5.0) is None  # too few to tell
    assert contrast(since, known, 1.5) is None  # only two are earlier
    assert contrast([(replace(one, batch=5), 0.7) for one, _ in since], known, 5.0) is None
    # The fit says slower, the times do not: the traffic moved, not the speed.
    same = [(replace(one, wall_s=0.02), value) for one, value in since]
    assert contrast(same, known, 5.0) == pytest.approx(0.0)


def test_a_slow_ramp_is_followed_too():
    live = fitter()
    factor = 1.0
    for minute in range(5):
        part = replace(TRAFFIC, seed=minute, seconds=60.0)
        faults = Faults(noise=0.05, slow_at_s=0.0, slow=factor)
        feed(live, passes(dense70b(), part, faults, start_s=60.0 * minute))
        factor *= 1.03
    assert np.median(errors(live, dense70b(), TRAFFIC, slow=factor / 1.03)) < 0.04


def test_the_current_error_is_that_of_passes_not_learned_yet():
    live = fitter()
    feed(live, passes(dense70b(), TRAFFIC, Faults(noise=0.05)))
    error = live.state().current
    # The median of |x| of a normal x is 0.674 of its standard deviation.
    assert error.median_pct == pytest.approx(3.4, abs=0.8)
    assert error.count == LiveOptions().error_passes


def test_a_worker_slower_than_its_pool_is_named():
    live = fitter()
    decode = replace(TRAFFIC, prefill=False, seconds=60.0)
    lame = [
        replace(one, worker="lame", wall_s=1.3 * one.wall_s)
        for one in list(passes(dense70b(), replace(decode, seed=9)))[::5]
    ]
    both = [*passes(dense70b(), decode), *lame]
    feed(live, iter(sorted(both, key=lambda one: one.at_s)))
    ratios = live.state().worker_ratios
    assert ratios["lame"] / ratios["d0"] == pytest.approx(1.3, abs=0.07)


def test_a_decode_worker_alone_gives_a_profile_of_decode_steps():
    decode = replace(TRAFFIC, prefill=False, mixed=0.0)
    live = fitter()
    feed(live, passes(dense70b(), decode, HARD))
    assert errors(live, dense70b(), decode).max() < 0.05
    assert live.state().prefill_passes == 0
    assert live.in_force is not None
    assert TableCost(live.in_force.tables).extrapolates(0, 0, 500, 125_000.0)


def test_a_prefill_worker_alone_gives_a_profile_of_prefills():
    prefill = replace(TRAFFIC, decode=False)
    live = fitter()
    feed(live, passes(dense70b(), prefill, HARD))
    assert errors(live, dense70b(), prefill).max() < 0.05
    assert live.state().decode_passes == 0
    assert live.in_force is not None
    assert TableCost(live.in_force.tables).extrapolates(4, 8000, 0, 0.0)


def test_nothing_is_due_before_enough_passes_count():
    live = fitter(least_passes=50, warm_up_passes=0)
    for number in range(50):  # the first of the shape does not count
        live.observe(a_pass(at_s=float(number)))
        assert not live.due(float(number))
    live.observe(a_pass(at_s=50.0))
    assert live.due(50.0)


def test_what_does_not_count_says_why():
    live = fitter(warm_up_passes=3)
    reasons = [
        live.observe(one)
        for one in (
            a_pass(batch=0, context=0, wall_s=0.0),
            a_pass(wall_s=math.nan),
            a_pass(wall_s=-1.0),
            a_pass(chunk=5),
            a_pass(),
            a_pass(batch=32, context=9000),
            a_pass(),
            a_pass(),
        )
    ]
    assert reasons == [
        LeftOut.IDLE,
        *[LeftOut.INVALID] * 3,
        *[LeftOut.FIRST_OF_SHAPE] * 2,
        LeftOut.WARM_UP,
        None,
    ]
    assert sum(live.state().left_out.values()) == 7


def test_every_worker_warms_up_for_itself():
    cold = ColdStart(warm_up_passes=2)
    for worker in ("a", "b"):
        found = [cold.left_out(a_pass(worker=worker)) for _ in range(3)]
        assert found == [LeftOut.FIRST_OF_SHAPE, LeftOut.WARM_UP, None]


def test_the_pairs_of_one_prompt_are_exact_and_of_several_within_bounds():
    one = a_pass(batch=0, context=0, prefills=1, chunk=100, history=640)
    assert one.pairs == 100 * (640 + 50) and one.pairs_bounds == (one.pairs, one.pairs)
    several = a_pass(batch=0, context=0, prefills=3, chunk=300, history=900)
    low, high = several.pairs_bounds
    assert low < several.pairs < high


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 4096), st.floats(0, 5)),
        max_size=400,
    )
)
@settings(max_examples=50, deadline=None)
def test_the_reservoir_is_bounded_and_keeps_only_what_it_was_offered(rows):
    reservoir = Reservoir(capacity=4, max_passes=40, half_life_s=10.0, seed=0)
    offered, now_s = [], 0.0
    for batch, chunk, gap_s in rows:
        now_s += gap_s
        one = a_pass(at_s=now_s, batch=batch, prefills=int(chunk > 0), chunk=chunk)
        offered.append(one)
        reservoir.offer(one)
        assert len(reservoir) <= 40
    kept = list(reservoir)
    assert len(kept) == len(reservoir)
    assert {id(one) for one in kept} <= {id(one) for one in offered}
    assert all(len(each) <= 4 for each in reservoir.strata().values())


def test_a_busy_shape_forgets_half_in_a_half_life_and_a_rare_one_is_kept():
    reservoir = Reservoir(capacity=32, max_passes=1000, half_life_s=60.0, seed=1)
    reservoir.offer(a_pass(at_s=0.0, batch=200))
    for number in range(0, 60_000):
        reservoir.offer(a_pass(at_s=number / 100))
    kept = [one.at_s for one in reservoir if one.batch == 4]
    ages = 600.0 - np.array(kept)
    assert 30 < np.median(ages) < 120
    assert [one.at_s for one in reservoir if one.batch == 200] == [0.0]


@given(
    before=st.integers(0, 60),
    after=st.integers(13, 40),
    shift=st.sampled_from([-0.4, 0.4]),
    seed=st.integers(0, 10_000),
)
def test_the_onset_of_a_change_is_found_to_a_few_passes(before, after, shift, seed):
    rng = np.random.default_rng(seed)
    values = np.concatenate([np.zeros(before), np.full(after, shift)])
    values += 0.05 * rng.standard_normal(len(values))
    assert abs(onset(values, shift) - before) <= 2


def _until(stream, end_s):
    for one in stream:
        yield one
        if one.at_s >= end_s:
            return
