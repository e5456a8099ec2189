# SPDX-License-Identifier: Apache-2.0
"""The alpha-beta fit of KV transfers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.costs.kv_fit import KvFitError, TransferTimes, fit_transfers

pytestmark = pytest.mark.unit

SIZES = tuple(2**k for k in range(16, 29, 2))


def transfers(latency_s, bandwidth, sizes=SIZES, noise=0.0, seed=0, repeats=9):
    rng = np.random.default_rng(seed)
    return [
        TransferTimes(
            size,
            tuple((latency_s + size / bandwidth) * np.exp(noise * rng.standard_normal(repeats))),
        )
        for size in sizes
    ]


@given(
    latency_s=st.floats(1e-6, 1e-2),
    bandwidth=st.floats(1e8, 1e12),
)
def test_exact_times_give_the_law_back(latency_s, bandwidth):
    fitted = fit_transfers(transfers(latency_s, bandwidth))
    times = np.array([fitted.transfer_s(size) for size in SIZES])
    true = np.array([latency_s + size / bandwidth for size in SIZES])
    assert np.allclose(times, true, rtol=1e-4)
    assert fitted.r_squared > 0.99999 and fitted.r_squared_log > 0.99999


def test_noise_moves_latency_and_bandwidth_little():
    for seed in range(5):
        fitted = fit_transfers(transfers(50e-6, 10e9, noise=0.1, seed=seed))
        assert fitted.latency_s == pytest.approx(50e-6, rel=0.15)
        assert fitted.bandwidth_bytes_s == pytest.approx(10e9, rel=0.15)


def test_a_repetition_that_the_host_delayed_is_outvoted():
    slow = [
        TransferTimes(each.bytes_moved, (*each.seconds[:-2], *(2 * (each.seconds[0] + 0.1,))))
        for each in transfers(50e-6, 10e9, repeats=9)
    ]
    fitted = fit_transfers(slow)
    assert fitted.latency_s == pytest.approx(50e-6, rel=1e-3)
    assert fitted.bandwidth_bytes_s == pytest.approx(10e9, rel=1e-3)


def test_one_size_off_the_law_does_not_bend_it_and_shows_in_its_residual():
    times = transfers(50e-6, 10e9)
    odd = times[3]
    times[3] = TransferTimes(odd.bytes_moved, tuple(3 * second for second in odd.seconds))
    fitted = fit_transfers(times)
    assert fitted.bandwidth_bytes_s == pytest.approx(10e9, rel=0.1)
    residuals = [abs(each.residual) for each in fitted.sizes]
    assert int(np.argmax(residuals)) == 3 and residuals[3] > 0.5


def test_small_sizes_are_not_lost_beside_large_ones():
    # An unweighted fit of these would put the latency anywhere within milliseconds.
    fitted = fit_transfers(transfers(20e-6, 1e9, noise=0.02, seed=3))
    assert fitted.latency_s == pytest.approx(20e-6, rel=0.3)


def test_nothing_takes_no_time():
    assert fit_transfers(transfers(1e-3, 1e9)).transfer_s(0) == 0.0


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (transfers(1e-3, 1e9)[:2], "at least 3"),
        ([*transfers(1e-3, 1e9), TransferTimes(SIZES[0], (1.0,))], "there twice"),
        ([*transfers(1e-3, 1e9), TransferTimes(5, ())], "no times"),
        ([*transfers(1e-3, 1e9), TransferTimes(5, (0.0,))], "not positive"),
        ([*transfers(1e-3, 1e9), TransferTimes(5, (float("nan"),))], "not positive"),
    ],
)
def test_what_cannot_be_fitted_is_named(times, message):
    with pytest.raises(KvFitError, match=message):
        fit_transfers(times)
