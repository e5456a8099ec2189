# SPDX-License-Identifier: Apache-2.0
"""The cost calls from Python beside the simulator's kernels, in one disk cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
# What counts no references is compiled first; then a worker's cost model, then all again from disk.
SCRIPT = """
from controller.costs.calls import unpack
from controller.costs.kernels import transfer_s
from controller.costs.model import TableCost
from controller.costs.tables import linear_tables, pack
from controller.simulation.cluster.compiled import entry

LINE = (0.01, 0.001, 0.0, 0.001, 0.0, 512, 0.002, 1.0, 10_000.0)

@entry
def uncounted(data, bounds):
    return transfer_s(unpack(data, bounds), 5.0)

packed = pack(linear_tables(*LINE))
for _ in range(1000):
    assert abs(uncounted(*packed) - 0.0025) < 1e-12
for _ in range(20):
    costs = TableCost(linear_tables(*LINE))
    for _ in range(1000):
        assert abs(costs.kv_transfer_s(5) - 0.0025) < 1e-12
        assert abs(costs.step_s(2, 100, 0, 0.0) - 0.012) < 1e-12
"""


def test_a_cost_model_survives_kernels_that_were_compiled_before_it(tmp_path: Path):
    script = tmp_path / "uncounted.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, script],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
