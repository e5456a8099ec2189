# SPDX-License-Identifier: Apache-2.0
"""Rate, burstiness and stationarity of arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from controller.simulation.traces import TraceError
from controller.simulation.workloads.arrivals import GapLaw, arrival_times

pytestmark = pytest.mark.unit


def draw(seed: int, *args: object) -> np.ndarray:
    return arrival_times(np.random.default_rng(seed), *args)


@pytest.mark.parametrize("law", GapLaw)
@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gaps_have_the_given_mean_and_cv(law: GapLaw, cv: float) -> None:
    gaps = np.diff(draw(1, 5.0, 20_000.0, cv, law))
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_weibull_has_the_longer_tail() -> None:
    longest = [np.diff(draw(3, 5.0, 20_000.0, 2.5, law)).max() for law in GapLaw]
    assert longest[1] > longest[0]


@pytest.mark.parametrize("law", GapLaw)
def test_a_bursty_run_is_not_too_full_at_its_start(law: GapLaw) -> None:
    """An ordinary first gap would add (8^2 - 1)/2 = 31 requests to the 200 expected ones."""
    counts = np.array([len(draw(seed, 2.0, 100.0, 8.0, law)) for seed in range(400)])
    error = counts.std() / np.sqrt(len(counts))
    assert abs(counts.mean() - 200) < 3 * error < 31


def test_a_metronome_has_equal_gaps_and_a_random_phase() -> None:
    times = draw(0, 10.0, 50.0, 0.0)
    assert np.allclose(np.diff(times), 0.1)
    assert len(times) == 500
    assert times[0] != draw(1, 10.0, 50.0, 0.0)[0]


def test_times_are_ascending_within_the_duration_and_follow_the_seed() -> None:
    times = draw(5, 3.0, 40.0, 3.0)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < 40
    assert np.array_equal(times, draw(5, 3.0, 40.0, 3.0))
    assert not np.array_equal(times, draw(6, 3.0, 40.0, 3.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 10.0, 1.0), "rate is 0.0: give a number above 0"),
        ((1.0, float("nan"), 1.0), "duration is nan"),
        ((1.0, 10.0, -1.0), "CV of the gaps is -1.0"),
        ((1.0, 10.0, float("nan")), "CV of the gaps is nan"),
    ],
)
def test_impossible_arrivals_are_refused(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        draw(0, *arguments)
