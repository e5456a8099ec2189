# SPDX-License-Identifier: Apache-2.0
"""What a command leaves out of its start comes back."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from controller.cli.quick_start import quick_start

pytestmark = pytest.mark.unit


def test_garbage_is_collected_again_afterwards_also_when_the_command_fails():
    assert gc.isenabled()
    with pytest.raises(RuntimeError), quick_start():
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()


def test_a_command_loads_compiled_code_without_scipy_and_can_still_import_it():
    code = (
        "import sys\n"
        "from controller.cli.quick_start import quick_start\n"
        "with quick_start():\n"
        "    from controller.costs.model import TableCost\n"
        "    from controller.costs.tables import linear_tables\n"
        "    TableCost(linear_tables(0.01, 0, 0, 0.001, 0, 64, 0, 1.0, 1e4))\n"
        "    assert 'scipy.linalg' not in sys.modules\n"
        "    import scipy.linalg\n"
        "    assert scipy.linalg.norm([3.0, 4.0]) == 5.0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
