# SPDX-License-Identifier: Apache-2.0
"""The AFD sweep script: its summary and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.afd_sweep import main

pytestmark = pytest.mark.integration

SMALL = ["--model", "llama31_8b", "--gpus", "4", "--max-sequences", "12", "--seeds", "2"]


def test_the_last_line_is_a_summary_of_every_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(summary["tokens_per_s_per_gpu"]) == ["1:3", "2:2", "3:1"]
    assert summary["best"] in summary["best_by_seed"]
    assert len(summary["best_by_seed"]) == 2
    assert all(mean > 0 for mean, _ in summary["tokens_per_s_per_gpu"].values())


def test_too_few_gpus_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpus", "3"]) == 2
    assert capsys.readouterr().err == (
        "afd_sweep: 3 GPUs hold the model in 2 splits: give more GPUs\n"
    )


def test_a_folder_without_tables_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--op-profile", str(tmp_path)]) == 2
    assert "attention.csv is missing" in capsys.readouterr().err
