# SPDX-License-Identifier: Apache-2.0
"""Our simulator against Dynamo's own replay, on a tenth of the check's workloads."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments import check_replay, replay_dynamo
from experiments.replay_cases import BLOCK, CASES, profile

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_means_agree_within_one_percent_and_tails_within_three(monkeypatch, capsys) -> None:
    pytest.importorskip("dynamo.replay", reason="ai-dynamo is not installed")
    monkeypatch.setattr("sys.argv", ["check_replay.py", "--seeds", "1", "--share", "0.25"])
    assert check_replay.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in ("steady", "bursty", "logged"):
        for metric, (error, _half) in ((m, found[name][m]) for m in check_replay.METRICS):
            assert abs(error) < (0.01 if metric.startswith("mean") else 0.03), (name, metric)
    assert found["held_back"] > 1.05  # what ours must not copy is still there


def test_step_times_of_both_sides_are_one_table() -> None:
    times = profile()
    from controller.costs.model import TableCost

    prefill = TableCost(replay_dynamo.prefill_tables(times, 8192))
    assert prefill.step_s(0, 0, 2048, 0.0) == pytest.approx(0.1124)
    decode = TableCost(replay_dynamo.decode_tables(times, 8192, 256, 0))
    column = int(np.searchsorted(times.context_tokens, 1000))
    context = float(times.context_tokens[column])
    want_ms = times.decode_step_ms(32 * context, column)
    assert decode.step_s(32, 32 * context, 0, 0.0) * 1e3 == pytest.approx(want_ms)
    assert want_ms == pytest.approx(7 + 0.02 * 32 + 2.2e-5 * 32 * context, rel=1e-3)


def test_a_trace_names_shared_blocks_alike_and_private_ones_apart(tmp_path) -> None:
    workload = CASES["logged"].draw(np.random.default_rng(1), 60)
    path = tmp_path / "trace.jsonl"
    replay_dynamo.write_trace(workload, path, BLOCK)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(line["hash_ids"]) for line in lines] == list(-(-workload.prompt_tokens // BLOCK))
    begins: dict[int, tuple[int, ...]] = {}
    for line in lines:
        ids = line["hash_ids"]
        for j, each in enumerate(ids):
            assert begins.setdefault(each, tuple(ids[:j])) == tuple(ids[:j])
    assert len(begins) < sum(len(line["hash_ids"]) for line in lines)


def test_bad_arguments_are_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["check_replay.py", "--share", "0"])
    assert check_replay.main() == 2
    assert capsys.readouterr().err == "error: --seeds must be at least 1, --share above 0\n"
