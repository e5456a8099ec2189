# SPDX-License-Identifier: Apache-2.0
"""The check of live emulated workers against the simulator: a short run, and what it refuses."""

from __future__ import annotations

import json
import sys

import pytest

from experiments import check_emulated


def run_main(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["check_emulated", *map(str, arguments)])
    return check_emulated.main()


@pytest.mark.unit
@pytest.mark.parametrize(
    "arguments",
    [("--seeds", 0), ("--policy", "best"), ("--time-scale", -1), ("--calm-rate", "nan")],
)
def test_bad_arguments_are_one_line(monkeypatch, capsys, arguments):
    assert run_main(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_live_and_simulated_ttft_agree(monkeypatch, capsys):
    # Two and a half emulated seconds, stretched until HTTP and late processes are small beside
    # a prefill.
    arguments = ("--seeds", 1, "--calm", 1, "--burst", 1.5, "--time-scale", 16)
    assert run_main(monkeypatch, *arguments) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["runs"]["1"]["same_place"] == 1.0
    assert found["runs"]["1"]["requests"] > 10
    assert found["ttft_median_relative_error"] < 0.05
