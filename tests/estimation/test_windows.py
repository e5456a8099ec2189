# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.estimation.windows import MeanWindow

pytestmark = pytest.mark.unit

SAMPLES = st.lists(
    st.tuples(st.floats(0, 5), st.floats(0, 100), st.floats(0.1, 50)), min_size=1, max_size=60
)


def test_an_empty_window_is_unknown_not_zero():
    assert math.isnan(MeanWindow(10).mean(0.0))


def test_samples_leave_after_the_window():
    window = MeanWindow(10)
    window.add(0.0, 4.0)
    window.add(6.0, 2.0)
    assert window.mean(6.0) == 3.0
    assert window.mean(10.0) == 2.0  # the sample of t=0 is exactly one window old
    assert math.isnan(window.mean(16.0))


def test_weights_count():
    window = MeanWindow(10)
    window.add(0.0, 0.020, weight=30)
    window.add(0.0, 0.100, weight=10)
    assert window.mean(0.0) == pytest.approx(0.040)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_ignored(value):
    window = MeanWindow(10)
    window.add(0.0, value)
    assert len(window) == 0


def test_a_clock_that_steps_back_neither_empties_nor_freezes_the_window():
    window = MeanWindow(10)
    window.add(100.0, 1.0)
    window.add(50.0, 3.0)
    assert window.mean(50.0) == 2.0
    assert math.isnan(window.mean(110.0))


@given(SAMPLES, st.floats(0, 400))
def test_the_mean_is_that_of_the_samples_inside(samples, later):
    window = MeanWindow(10)
    clock, kept = 0.0, []
    for gap, value, weight in samples:
        clock += gap
        window.add(clock, value, weight)
        kept.append((clock, value, weight))
    now = clock + later
    inside = [(v, w) for at, v, w in kept if at > now - 10]
    if not inside:
        assert math.isnan(window.mean(now))
    else:
        expected = sum(v * w for v, w in inside) / sum(w for _, w in inside)
        assert window.mean(now) == pytest.approx(expected, abs=1e-6)
