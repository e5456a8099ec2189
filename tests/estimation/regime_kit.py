# SPDX-License-Identifier: Apache-2.0
"""Pools sample by sample."""

from __future__ import annotations

from controller.estimation.regime.cusum import CusumParams, CusumState, step
from controller.estimation.regime.values import PoolSample, Verdict


def sample(number, arrived=10.0, served=10.0, backlog=1.0, age=None, latency=0.1, workers=1):
    """One control period of 5 s."""
    return PoolSample(5.0 * number, arrived, served, backlog, age, workers, latency)


def verdicts(samples, params: CusumParams | None = None) -> list[Verdict]:
    """What the detector says after each."""
    state, said = CusumState(), []
    for each in samples:
        state, verdict = step(state, each, params or CusumParams())
        said.append(verdict)
    return said
