# SPDX-License-Identifier: Apache-2.0
"""Two test processes do not compile the same simulator at once, a minute and more for each."""

from __future__ import annotations

import fcntl

import numpy as np
import pytest

from controller.costs.tables import linear_tables
from controller.engine import EngineSpec
from controller.simulation.cluster import SimOptions, simulate, uniform_cluster
from controller.simulation.workloads.rows import single_rounds


@pytest.fixture(scope="session", autouse=True)
def simulator_is_compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whoever comes first compiles; the others wait, and load what that left in the cache."""
    # pytest-xdist gives each of its processes a folder in one that they share.
    lock = tmp_path_factory.getbasetemp().parent / "simulator.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        engine = EngineSpec(block_size=16, num_blocks=64, max_num_batched_tokens=64, max_num_seqs=4)
        costs = linear_tables(0.01, 0.0, 0.0, 0.001, 0.0, 64, 0.0, 1.0, 10_000.0)
        load = single_rounds("one", np.zeros(1), np.array([16]), np.array([2]))
        simulate(load, uniform_cluster(1, 1, engine, costs), SimOptions())
