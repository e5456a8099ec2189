# SPDX-License-Identifier: Apache-2.0
"""Finding out from step times whether a worker pads to CUDA graph sizes."""

import numpy as np
import pytest

from controller.costs.capture_sizes import VLLM_SIZES, fit_finding_sizes
from controller.costs.fit import FitOptions
from controller.costs.measurements import measurements
from controller.costs.model import TableCost

pytestmark = pytest.mark.unit


def decode_steps(padded, count=600, seed=0, noise=0.02):
    """10 ms + 0.3 ms a token computed + 20 ns a KV token, batches of 1 to 64."""
    rng = np.random.default_rng(seed)
    batch = rng.integers(1, 65, count)
    context = batch * rng.integers(100, 4000, count)
    sizes = np.array(VLLM_SIZES)
    tokens = sizes[np.searchsorted(sizes, batch)] if padded else batch
    step_s = (10e-3 + 0.3e-3 * tokens + 20e-9 * context) * np.exp(noise * rng.normal(size=count))
    zeros = np.zeros(count)
    return measurements(batch, context, zeros, zeros, step_s)


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_pads_is_recognised_and_its_jumps_are_predicted(seed):
    tables = fit_finding_sizes(decode_steps(True, seed=seed), FitOptions()).tables
    assert tuple(tables.capture_sizes) == VLLM_SIZES
    cost = TableCost(tables)
    assert cost.step_s(9, 9000, 0, 0.0) == pytest.approx(10e-3 + 16 * 0.3e-3 + 0.18e-3, rel=0.03)
    assert cost.step_s(8, 8000, 0, 0.0) == pytest.approx(10e-3 + 8 * 0.3e-3 + 0.16e-3, rel=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_does_not_pad_gets_no_sizes(seed):
    tables = fit_finding_sizes(decode_steps(False, seed=seed), FitOptions()).tables
    assert len(tables.capture_sizes) == 0
