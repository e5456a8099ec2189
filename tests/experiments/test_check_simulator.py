# SPDX-License-Identifier: Apache-2.0
"""The check against vLLM's logs: a log made by the law itself, and the real ones if at hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from shared_data import shared_path
from vllm_kit import log_of, write_profiles, write_run

from controller.costs.op_profiles import fit_ops
from controller.runtime.operator_tables import read_op_tables
from experiments import check_simulator
from experiments.vllm_replay import replay
from experiments.vllm_runs import architecture, read_run
from experiments.vllm_steps import OVERHEADS, engine_model


def run_main(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["check_simulator", *map(str, arguments)])
    return check_simulator.main()


def synthetic(folder: Path) -> None:
    """Runs of one engine and of two in lock-step whose logs the replay itself wrote."""
    write_profiles(folder / "profiles" / "rtx9090_qwen")
    ops = fit_ops(read_op_tables(folder / "profiles/rtx9090_qwen/tp1"))
    rng = np.random.default_rng(7)
    rows = zip(
        np.cumsum(rng.exponential(0.05, 40)),
        rng.integers(50, 3000, 40),
        rng.integers(1, 60, 40),
        strict=True,
    )
    bare = log_of([(float(at), int(prompt), int(output)) for at, prompt, output in rows])
    bare.arrival_s[:] -= bare.arrival_s[0]
    for name, engine in (
        ("single", {}),
        ("lockstep", {"data_parallel_size": 2, "enable_expert_parallel": True}),
    ):
        path = folder / "runs" / name
        stamps = np.zeros(len(bare))
        empty = type(bare)(bare.prompt_tokens, bare.output_tokens, bare.arrival_s, *[stamps] * 3)
        write_run(path, empty, **engine)
        run = read_run(path)
        model = engine_model(run, architecture(run.model), ops, OVERHEADS)
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
        write_run(path, replay(run, model, OVERHEADS.prefix_share), **engine)


@pytest.mark.unit
@pytest.mark.timeout(900)  # the first one compiles the simulator
def test_a_log_that_the_law_wrote_is_met_exactly(tmp_path, monkeypatch, capsys):
    synthetic(tmp_path)
    code = run_main(
        monkeypatch,
        *("--vllm-runs", tmp_path / "runs"),
        *("--op-profiles", tmp_path / "profiles"),
        *("--out", tmp_path / "out"),
    )
    last = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert code == 0
    assert sorted(last["runs"]) == ["lockstep", "single"]
    for errors in last["runs"].values():
        assert {"ttft_mean", "tpot_mean", "latency_mean", "ttft_p50", "tpot_p95"} <= set(errors)
        assert max(abs(error) for error in errors.values()) < 1e-4
    assert list(last["compiled_s"]) == ["single"]
    assert last["compiled_s"]["single"] < 1e-6
    assert len((tmp_path / "out" / "single.csv").read_text().splitlines()) == 41


@pytest.mark.unit
def test_what_the_operator_can_fix_is_one_line(tmp_path, monkeypatch, capsys):
    arguments = ("--vllm-runs", tmp_path, "--op-profiles", tmp_path)
    assert run_main(monkeypatch, *arguments) == 2
    assert "no run folder" in capsys.readouterr().err

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "meta.json").write_text("{")
    assert run_main(monkeypatch, *arguments) == 2
    assert "not JSON" in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_real_logs_are_met_within_three_percent_and_five_at_p95():
    folders = check_simulator.run_folders(shared_path("validation/vllm_runs"))
    found = check_simulator.check(folders, shared_path("validation/op_profiles"), None)

    assert len(found["runs"]) == 2
    assert max(found["compiled_s"].values()) < 1e-6
    for name, errors in found["runs"].items():
        for metric in ("ttft", "tpot", "latency"):
            assert abs(errors[f"{metric}_mean"]) < 0.03, (name, metric)
            assert abs(errors[f"{metric}_p95"]) < 0.05, (name, metric)
