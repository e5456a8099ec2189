# SPDX-License-Identifier: Apache-2.0
"""The decision bench does what it says; how long that takes is for the bench itself."""

import json
import sys

import pytest

from controller.errors import UserError
from experiments import bench_decision

pytestmark = pytest.mark.unit


def test_the_wanted_number_of_tasks_waits_all_the_time():
    site = bench_decision.Site("always_remote", "hopeless_last", workers=8, waiting=20)
    seen = []
    decide = site.decision

    def watched(*args):
        seen.append(site.queues.waiting())
        decide(*args)

    site.decision = watched
    took_us, wall_us = bench_decision.measured(site, 200)
    assert len(took_us) == len(wall_us) == 200
    assert min(seen) >= 15 and max(seen) <= 20


def test_the_last_line_is_json_by_workers_and_waiting_tasks(monkeypatch, capsys):
    monkeypatch.setattr(bench_decision, "WORKERS", (4,))
    monkeypatch.setattr(bench_decision, "WAITING", (1, 8))
    monkeypatch.setattr(sys, "argv", ["bench_decision.py", "--quick", "--decisions", "100"])
    assert bench_decision.main() == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(summary["p99_us"]) == set(summary["wall_p99_us"]) == {"4x1", "4x8"}
    assert set(summary["by_rule"]) == {"toll+hopeless_last"}
    assert all(value > 0 for value in summary["p99_us"].values())


def test_too_few_decisions_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench_decision.py", "--decisions", "10"])
    with pytest.raises(UserError, match="at least 100"):
        bench_decision.main()
