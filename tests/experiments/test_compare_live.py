# SPDX-License-Identifier: Apache-2.0
"""The live comparison of policies: what counts as the same order, what it refuses."""

from __future__ import annotations

import sys

import pytest

from experiments import compare_live

pytestmark = pytest.mark.unit


def test_pairs_that_are_close_on_either_side_do_not_count():
    live = {"a": 90.0, "b": 80.0, "c": 79.0}
    assert compare_live.concordance(live, {"a": 95.0, "b": 70.0, "c": 60.0}, 2.0) == (2, 2)
    assert compare_live.concordance(live, {"a": 60.0, "b": 70.0, "c": 50.0}, 2.0) == (1, 2)
    assert compare_live.concordance(live, live, 0.5) == (3, 3)


@pytest.mark.parametrize(
    "arguments", [("--seeds", "0"), ("--rules", "toll"), ("--rules", "nosuch+fifo", "toll+fifo")]
)
def test_bad_arguments_are_one_line(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["compare_live", *arguments])
    assert compare_live.main() == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
