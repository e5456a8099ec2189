# SPDX-License-Identifier: Apache-2.0
"""Real NIXL transfers between two processes on this machine."""

import importlib.util
import json

import pytest

from controller.cli.main import main
from controller.runtime.profiling.nixl_sweep import SweepError, SweepPlan, sweep
from controller.runtime.resources import read_profile

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec("nixl") is None,
        reason="NIXL is not installed (pip install --no-deps nixl nixl-cu12)",
    ),
]

SIZES = (65536, 2**20, 2**22)


@pytest.mark.parametrize("transports", [None, "tcp,self"])
@pytest.mark.parametrize("piece", [None, 65536])
def test_every_size_is_moved_and_timed(transports, piece):
    # `sweep` itself compares what arrived with what was sent.
    plan = SweepPlan(SIZES, repeats=3, warm_up=1, piece_bytes=piece, transports=transports)
    done = []
    times = sweep(plan, done.append)
    assert times == done
    assert [each.bytes_moved for each in times] == list(SIZES)
    assert all(len(each.seconds) == 3 and min(each.seconds) > 0 for each in times)


def test_a_transport_that_does_not_exist_is_one_line():
    with pytest.raises(SweepError, match="NIXL"):
        sweep(SweepPlan(SIZES, repeats=1, transports="carrier_pigeon"))


def test_the_command_fits_and_writes_times_and_a_profile(tmp_path, capsys):
    out, made = tmp_path / "kv.json", tmp_path / "with_kv.json"
    command = ["profile", "kv-transfer", "--sizes", "64K,1M,4M", "--repeats", "3"]
    assert main([*command, "--out", str(out)]) == 0
    assert "R^2" in capsys.readouterr().out
    record = json.loads(out.read_text())
    assert [row["bytes"] for row in record["sizes"]] == list(SIZES)
    assert main([*command, "--profile", "dense70b_tp4", "--out", str(made)]) == 0
    kv = read_profile(made).kv_transfer
    assert kv.bandwidth_gb_s > 0 and kv.bytes_per_token == 327680
    assert kv != read_profile("dense70b_tp4").kv_transfer
