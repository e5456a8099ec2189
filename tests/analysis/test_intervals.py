# SPDX-License-Identifier: Apache-2.0
import pytest

from analysis.intervals import mean_interval

pytestmark = pytest.mark.unit


def test_the_half_width_is_students_t():
    # 1..5: s = 1.5811, s/sqrt(5) = 0.7071, t(4, 97.5 %) = 2.7764.
    assert mean_interval([1, 2, 3, 4, 5]) == [3.0, pytest.approx(1.9633, abs=1e-3)]


def test_one_seed_has_no_interval():
    assert mean_interval([7.0]) == [7.0, None]


def test_equal_values_have_width_zero():
    assert mean_interval([2.0, 2.0, 2.0]) == [2.0, 0.0]
