# SPDX-License-Identifier: Apache-2.0
"""The script that fits the shipped profiles, without the tables that it reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from controller.costs.profile import dump_profile, parse_profile
from experiments import fit_profiles
from experiments.aiconfigurator_tables import Hardware, roofline_s
from experiments.profile_targets import DEEPSEEK_V2_LITE, TARGETS, MoeTable

pytestmark = pytest.mark.unit

BY_NAME = {target.name: target for target in TARGETS}
GPU = Hardware(80 * 2**30, 2e12, 312e12, 25e9)


class Scaled:
    """Operators in the range of a real GPU."""

    def __init__(self, target: object, tables: object) -> None:
        pass

    def dense_s(self, tokens: int) -> float:
        return max(0.008, 4e-5 * tokens)

    def head_s(self, sequences: int) -> float:
        return 1e-4 + 1e-6 * sequences

    def decode_attention_s(self, batch: int, context: int) -> float:
        return 5e-4 + 2e-9 * batch * context

    def prefill_attention_s(self, tokens: int) -> float:
        return 2e-4 + 1e-6 * tokens + 1e-10 * tokens**2


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_profiles, "AiconfiguratorOperators", Scaled)
    monkeypatch.setattr(fit_profiles, "load_tables", lambda source: None)
    monkeypatch.setattr(fit_profiles, "hardware", lambda tables: GPU)


def test_without_aiconfigurator_it_says_what_to_install(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator", None)
    monkeypatch.setattr("sys.argv", ["fit_profiles.py", "--out", str(tmp_path)])
    assert fit_profiles.main() == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "pip install 'dynamo-equilibrium[costs-data]'" in error
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_target_lists_the_known_ones(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("sys.argv", ["fit_profiles.py", "--only", "gpt5", "--out", str(tmp_path)])
    assert fit_profiles.main() == 2
    assert "llama31_70b_tp4_b200" in capsys.readouterr().err


@pytest.mark.usefixtures("no_tables")
def test_a_profile_and_its_step_times_are_written(monkeypatch, capsys, tmp_path: Path) -> None:
    name = "llama31_70b_tp4_b200"
    arguments = ["--only", name, "--out", str(tmp_path), "--tables-out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["fit_profiles.py", *arguments])
    assert fit_profiles.main() == 0
    profile = parse_profile((tmp_path / f"{name}.json").read_text(), name)
    assert profile.fit_error is not None and profile.fit_error.overall.median_pct < 1
    assert parse_profile(dump_profile(profile), name) == profile
    assert (tmp_path / f"{name}.csv").read_text().startswith("batch,context_tokens,")
    assert '"profiles": 1' in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.usefixtures("no_tables")
def test_latent_kv_is_sent_by_one_rank_and_split_kv_by_all() -> None:
    split = fit_profiles.fit_target(BY_NAME["llama31_70b_tp4_b200"], None, None)
    latent = fit_profiles.fit_target(BY_NAME["deepseek_v2_lite_tp1_a100"], None, None)
    assert split.kv_transfer.bandwidth_gb_s == pytest.approx(4 * 25)
    assert latent.kv_transfer.bandwidth_gb_s == pytest.approx(25)
    assert latent.kv_transfer.bytes_per_token == 27 * 576 * 2


def test_a_stand_in_for_experts_reads_fewer_and_computes_more() -> None:
    own = MoeTable(2048, 1408, 6, 64)
    table = DEEPSEEK_V2_LITE.measured_experts
    assert table is not None

    def ratio(tokens: int) -> float:
        return roofline_s(own, tokens, GPU) / roofline_s(table, tokens, GPU)

    # One token reads 6*1408 columns instead of 8*768; many read all of 64*1408 instead of
    # 128*768, and compute as much more as one token reads more.
    assert ratio(1) == pytest.approx(1.375, rel=0.01)
    assert ratio(256) < 1.05
    assert ratio(100_000) == pytest.approx(1.375, rel=0.05)
