# SPDX-License-Identifier: Apache-2.0
"""The script that judges the cost models, on small tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shared_data import shared_path

from experiments import check_costs

pytestmark = pytest.mark.unit

HEADER = (
    "id,backend,model_path,system,precision,mode,isl,osl,gemm_quant_mode,batch_size,tp_size,"
    "pp_size,attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms\n"
)
KNOWN = "a,vllm,Qwen/Qwen3-32B,h100_sxm,,agg,1024,512,,16,2,1,,,,180.0,17.0\n"
ROWS = (
    KNOWN
    + "b,vllm,meta-llama/Llama-3.1-70B,b200_sxm,fp8,agg,1024,1024,fp8,8,4,1,1,4,1,110,8.2\n"
    + "c,vllm,acme/Unheard-Of-7B,mi300x,fp8,agg,1024,1024,fp8,8,4,1,1,4,1,110,8.2\n"
    + "d,sglang,deepseek-ai/DeepSeek-R1,gb300,fp4,disagg,1024,1024,,,,,,,,110,8.2\n"
)


@pytest.fixture(autouse=True)
def no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_costs, "CALLS", 10)
    monkeypatch.setattr(check_costs, "python_us", lambda cost: 2.0)


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, list[str]]:
    monkeypatch.setattr("sys.argv", ["check_costs.py", *map(str, arguments)])
    code = check_costs.main()
    return code, capsys.readouterr().out.splitlines()


def table(folder: Path, rows: str = ROWS) -> Path:
    path = folder / "half.csv"
    path.write_text(HEADER + rows)
    return path


def test_without_arguments_the_parts_are_skipped_and_null(monkeypatch, capsys) -> None:
    code, lines = run(monkeypatch, capsys)
    found = json.loads(lines[-1])
    assert code == 0
    for key in ("tpot_median_ape", "tpot_p95_ape", "op_median_ape", "op_p95_ape", "models"):
        assert found[key] is None
    assert found["python_call_us"] == 2.0
    assert "whole servers: skipped, no --silicon FILE" in lines


def test_servers_are_compared_and_unknown_ones_counted(monkeypatch, capsys, tmp_path) -> None:
    code, lines = run(monkeypatch, capsys, "--silicon", table(tmp_path), "--out", tmp_path / "out")
    found = json.loads(lines[-1])
    assert code == 0
    assert "covered: 2 of 4 points (50%)" in lines
    assert found["covered_share"] == 0.5
    assert set(found["models"]) == {"qwen3-32b", "llama-3.1-70b"}
    assert found["tpot_median_ape"] >= 0
    assert found["factors_from_this_table"] is False
    for name in ("silicon_points.csv", "silicon_tpot.png", "silicon_ttft.png"):
        assert (tmp_path / "out" / name).stat().st_size > 0


def test_a_table_of_unknown_models_only_is_no_error(monkeypatch, capsys, tmp_path) -> None:
    rows = ROWS.splitlines(keepends=True)[2]
    code, lines = run(monkeypatch, capsys, "--silicon", table(tmp_path, rows))
    assert code == 0
    assert json.loads(lines[-1])["tpot_median_ape"] is None


def test_shipped_factors_do_not_depend_on_the_table(monkeypatch, capsys, tmp_path) -> None:
    doubled = KNOWN.replace("17.0", "34.0")
    one = run(monkeypatch, capsys, "--silicon", table(tmp_path, KNOWN))[1]
    two = run(monkeypatch, capsys, "--silicon", table(tmp_path, doubled))[1]
    near, far = (json.loads(lines[-1])["tpot_median_ape"] for lines in (one, two))
    twice = (100 - (100 - near) / 2, 100 - (100 + near) / 2)
    assert min(abs(far - expected) for expected in twice) < 0.01


def test_factors_can_be_fitted_anew(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(check_costs, "CORRECTIONS", tmp_path / "factors.json")
    code, lines = run(monkeypatch, capsys, "--silicon", table(tmp_path, KNOWN), "--fit-corrections")
    found = json.loads(lines[-1])
    assert code == 0
    assert found["factors_from_this_table"] is True
    assert found["tpot_median_ape"] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("option", ["--silicon", "--op-profiles"])
def test_a_path_that_is_not_there_is_one_clear_line(
    option: str, monkeypatch, capsys, tmp_path
) -> None:
    monkeypatch.setattr("sys.argv", ["check_costs.py", option, str(tmp_path / "nothing")])
    assert check_costs.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_dense_servers_are_within_ten_per_cent_at_the_median(monkeypatch, capsys) -> None:
    path = shared_path("validation/silicon_sample_half.csv")
    found = json.loads(run(monkeypatch, capsys, "--silicon", path)[1][-1])
    assert found["covered_points"] > 450
    assert found["tpot_median_ape"] <= 10
