# SPDX-License-Identifier: Apache-2.0
"""The router's experiments: their arithmetic, what they refuse, a small run in one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.bench_router import added_ttft, forth_and_back

ROOT = Path(__file__).resolve().parents[2]


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "experiments" / script), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        check=False,
    )


@pytest.mark.unit
@pytest.mark.parametrize("round_number", range(4))
def test_every_arm_is_measured_forth_and_back_at_the_same_mean_place(round_number):
    order = forth_and_back(["a", "b", "c"], round_number)
    places = {arm: [k for k, each in enumerate(order) if each == arm] for arm in "abc"}
    assert {sum(each) for each in places.values()} == {5}
    assert forth_and_back(["a", "b"], 0) == ["a", "b", "b", "a"]


@pytest.mark.unit
def test_added_ttft_is_over_the_faster_stock_and_the_null_is_its_own_spread():
    medians = {
        "stock": [[60.0, 60.0]] * 4,
        "stock_again": [[10.0, 12.0], [11.0, 11.0], [12.0, 10.0], [11.0, 11.0]],
        "broker": [[13.0, 13.0]] * 4,
        "relay": [[15.0, 17.0]] * 4,
    }
    summary = added_ttft(medians)
    assert summary["broker_added_ttft_ms"] == 2.0 and summary["relay_added_ttft_ms"] == 5.0
    assert summary["stock_ttft_ms"] == 11.0 and summary["other_stock_ttft_ms"] == 60.0
    assert summary["null_ttft_ms"] == 0.0 and 2.0 < summary["null_ttft_halfwidth_ms"] < 3.0


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "arguments", "says"),
    [
        ("bench_router.py", ["--rounds", "1"], "at least 2"),
        ("bench_router.py", ["--out", "/nowhere/rows.jsonl"], "cannot be written"),
        ("check_streams.py", ["--streams", "0"], "at least 1"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(script, arguments, says):
    result = run(script, *arguments)
    assert result.returncode == 2
    assert says in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.integration
def test_some_hundred_sessions_leave_nothing_held():
    result = run("check_streams.py", "--sessions", "400")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["sessions"] == 400 and summary["held_after"] == 0
    assert 0 < summary["rss_mb_late"] < summary["rss_mb_early"] + 50
