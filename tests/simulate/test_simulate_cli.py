# SPDX-License-Identifier: Apache-2.0
"""`equilibrium simulate` from the outside: files, JSON, determinism, one-line errors."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from controller.cli.main import main

# The first simulation compiles the kernels.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SMALL = ("--trace", "calm_then_burst", "--limit", "60", "--quiet")


def simulate(*arguments: object) -> int:
    return main(["simulate", *(str(argument) for argument in arguments)])


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    assert simulate(*arguments, "--json") == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert simulate(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    return lines[0]


def test_a_trace_needs_no_configuration(capsys):
    found = report(
        capsys, *SMALL, "--prefill", 2, "--decode", 2, "--profile", "llama31_8b_fp8_tp1_h200"
    )
    assert (found["prefill_workers"], found["decode_workers"]) == (2, 2)
    assert found["requests"] == found["served"] == 60
    parts = sum(found[name]["mean"] for name in ("queue_ms", "prefill_ms", "transfer_ms"))
    assert found["ttft_ms"]["mean"] == pytest.approx(parts + found["admission_ms"]["mean"])


def test_the_table_shows_both_criteria_and_the_parts(capsys):
    assert simulate(*SMALL) == 0
    out = capsys.readouterr().out
    for label in (
        *("SLO attainment, mean ITL", "SLO attainment, p99 gap", "goodput/s", "longest wait"),
        *("local prefills", "prefix hit rate", "utilisation, decode", "rejected", "admission"),
    ):
        assert label in out


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_the_same_arguments_write_the_same_bytes(tmp_path, capsys, file_format):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        code = simulate(
            *SMALL,
            *("--config", "simulate_2p2d", "--seed", 7, "--file-format", file_format),
            *("--out", folder, "--chrome-trace", tmp_path / f"{folder.name}.json"),
        )
        assert code == 0
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == [
        "config.json",
        f"requests.{file_format}",
        f"series.{file_format}",
        "summary.json",
    ]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.json", "b", "b.json"]


def test_rows_series_and_summary_tell_the_same_story(tmp_path, capsys):
    found = report(capsys, *SMALL, "--decode", 2, "--out", tmp_path / "run", "--series-step", 0.5)
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    series = pd.read_parquet(tmp_path / "run" / "series.parquet")
    assert len(rows) == found["requests"]
    assert rows.attained.mean() == pytest.approx(found["attainment"])
    assert rows.ttft_ms.quantile(0.95) == pytest.approx(found["ttft_ms"]["p95"])
    parts = rows[["queue_ms", "prefill_ms", "transfer_ms", "admission_ms"]]
    assert parts.sum(axis=1).to_numpy() == pytest.approx(rows.ttft_ms.to_numpy())
    assert (parts.min() >= -1e-9).all()
    assert series.arrivals.sum() == series.finished.sum() == len(rows)
    # Who has arrived and not finished, counted by hand at one instant.
    at_s = float(series.time_s.iloc[10]) + 0.5
    assert series.in_flight.iloc[10] == ((rows.arrival_s < at_s) & (rows.finish_s >= at_s)).sum()
    for pool in ("prefill", "decode"):
        busy = series[f"utilisation_{pool}"]
        assert busy.between(0, 1 + 1e-9).all()
        share = found[f"utilisation_{pool}"]
        assert busy.sum() * 0.5 == pytest.approx(share * rows.finish_s.max(), rel=1e-6)


def test_the_chrome_trace_has_a_row_for_every_span(tmp_path, capsys):
    path = tmp_path / "trace.json"
    found = report(capsys, *SMALL, "--prefill", 2, "--decode", 2, "--chrome-trace", path)
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["ph"] for event in events} == {"X", "M"}
    assert sum(span["name"] == "prefill" for span in spans) == found["served"]
    assert sum(span["name"] == "decode" for span in spans) == found["served"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    by_row = defaultdict(list)
    for span in spans:
        by_row[span["pid"], span["tid"]].append((span["ts"], span["ts"] + span["dur"]))
    assert named == set(by_row)
    for row in by_row.values():
        row.sort()
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(row))


def test_several_seeds_give_means_with_intervals(tmp_path, capsys):
    found = report(
        capsys,
        *("--trace", "synthetic:poisson,rate=3,duration=20", "--seeds", 5, "--quiet"),
        *("--out", tmp_path / "run", "--seed", 10),
    )
    each = [run["ttft_ms"]["mean"] for run in found["runs"]]
    assert [run["seed"] for run in found["runs"]] == [10, 11, 12, 13, 14]
    assert len(set(each)) == 5
    mean, half = found["intervals"]["ttft_ms_mean"]
    assert mean == pytest.approx(sum(each) / 5, abs=1e-3)
    assert 0 < half < mean
    assert (tmp_path / "run" / "seed-14" / "requests.parquet").is_file()


def test_a_deployment_file_is_simulated_as_deployed(capsys):
    found = report(capsys, *SMALL, "--config", "local_1p2d")
    assert (found["prefill_workers"], found["decode_workers"]) == (1, 2)
    assert found["slo"] == {"ttft_ms": 1000.0, "itl_ms": 50.0}


def test_unequal_workers_come_from_groups(capsys):
    found = report(capsys, *SMALL, "--config", "simulate_mixed", "--set", "decode.workers=2")
    assert (found["prefill_workers"], found["decode_workers"]) == (3, 2)


def test_speculation_and_scheduling_ahead_are_settings_of_an_engine(tmp_path, capsys):
    draft = "{verified_tokens: 4, emitted_tokens: 2.5}"
    plain = report(capsys, *SMALL)
    fast = report(capsys, *SMALL, "--set", f"decode.emulated.speculation={draft}")
    out = ("--out", tmp_path / "out", "--chrome-trace", tmp_path / "trace.json")
    both = report(
        capsys,
        *(*SMALL, *out, "--set", f"decode.emulated.speculation={draft}"),
        *("--set", "decode.emulated.async_scheduling=true"),
    )
    assert plain["itl_ms"]["mean"] > 1.5 * fast["itl_ms"]["mean"]
    assert both["served"] == fast["served"] == 60
    # The first decode step of a stream waits for the one that was composed before it came.
    assert both["admission_ms"]["mean"] > fast["admission_ms"]["mean"]
    parts = ("queue_ms", "prefill_ms", "transfer_ms", "admission_ms")
    assert both["ttft_ms"]["mean"] == pytest.approx(sum(both[name]["mean"] for name in parts))


def test_a_cohort_leaves_out_what_begins_elsewhere(capsys):
    whole = report(capsys, "--trace", "calm_then_burst", "--quiet")
    calm = report(capsys, "--trace", "calm_then_burst", "--quiet", "--cohort", ":20")
    burst = report(capsys, "--trace", "calm_then_burst", "--quiet", "--cohort", "20:")
    assert calm["requests"] + burst["requests"] == whole["requests"]
    assert calm["attainment"] > burst["attainment"]


def test_what_has_not_ended_by_the_limit_is_a_miss(capsys):
    found = report(capsys, "--trace", "calm_then_burst", "--quiet", "--until", 30)
    assert found["unfinished"] > 0 and found["never_issued"] > 0
    counted = sum(found[s] for s in ("served", "rejected", "failed", "unfinished", "never_issued"))
    assert counted == found["requests"] == 383
    assert found["attainment"] <= found["served"] / 383
    assert found["longest_wait_ms"] >= found["ttft_ms"]["max"]


def test_a_request_above_every_kv_capacity_is_rejected_and_its_session_ends(tmp_path, capsys):
    path = tmp_path / "huge.jsonl"
    path.write_text(
        '{"timestamp": 0, "session_id": "a", "input_length": 16000000, "output_length": 1}\n'
        '{"delay": 5, "session_id": "a", "input_length": 5, "output_length": 2}\n'
        '{"timestamp": 30, "input_length": 20, "output_length": 2}\n'
    )
    found = report(capsys, "--trace", path, "--quiet")
    assert (found["rejected"], found["never_issued"], found["served"]) == (1, 1, 1)
    assert found["attainment"] == pytest.approx(1 / 3)


def test_results_are_not_overwritten_without_force(tmp_path, capsys):
    folder = tmp_path / "run"
    assert simulate(*SMALL, "--out", folder) == 0
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "not empty" in refusal(capsys, *SMALL, "--seed", 3, "--out", folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert simulate(*SMALL, "--seed", 3, "--prefill", 2, "--out", folder, "--force") == 0
    assert (folder / "summary.json").read_bytes() != before["summary.json"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--policy", "best"], "known: always_local"),
        (["--profile", "nowhere"], "nowhere does not exist"),
        (["--config", "nowhere"], "simulate_2p2d"),
        (["--config", "local_vllm_cpu"], "prefill.engine is vllm"),
        (["--config", "simulate_mixed", "--prefill", "2"], "--set prefill.0.workers=2"),
        (["--set", "router.polcy=ampd"], "did you mean 'policy'"),
        (["--set", "decode.emulated.blocksize=8"], "did you mean 'block_size'"),
        (["--set", "decode.4.workers=8"], "no place in a list of 1"),
        (["--set", "prefill=x"], "prefill"),
        (["--set", "decode.0.emulated.block_size=48"], "do not divide"),
        (["--set", "decode.emulated.watermark_blocks=9999999"], "watermark_blocks"),
        (["--decode", "0"], "--decode 0"),
        (["--seeds", "0"], "--seeds 0"),
        (["--until", "nan"], "--until"),
        (["--cohort", "9:3"], "--cohort"),
        (["--cohort", "900:"], "no request begins"),
        (["--rate-scale", "-1"], "--rate-scale"),
        (["--duration", "0.001"], "no request is left"),
        (["--out", "/nowhere/run"], "parent folder does not exist"),
        (["--chrome-trace", "/nowhere/t.json"], "folder does not exist"),
        (["--chrome-trace", "trace.txt"], "end the name in .json"),
        (["--format", "azure"], "TIMESTAMP"),
    ],
)
def test_what_the_user_can_fix_is_one_line(capsys, arguments, expected):
    assert expected in refusal(capsys, "--trace", "calm_then_burst", "--quiet", *arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("schema: equilibrium.simulation/2", "schema"),
        ("schema: equilibrium.simulation/1\nprefil: 2", "did you mean 'prefill'"),
        ("schema: equilibrium.simulation/1\ndecode: []", "no decode worker"),
        ("schema: equilibrium.simulation/1\nslo: {ttft_ms: .nan}", "slo.ttft_ms"),
        ("schema: equilibrium.deployment/1\nrouter: {attachment: none}", "is not simulated"),
        ("a: [", "not YAML"),
        ("a: " + "[" * 5000, "not YAML"),
        ("a: 2001-99-99", "not YAML"),
    ],
)
def test_a_bad_simulation_file_is_one_line(capsys, tmp_path: Path, text, expected):
    path = tmp_path / "simulation.yaml"
    path.write_text(text)
    line = refusal(capsys, "--trace", "calm_then_burst", "--config", path, "--quiet")
    assert expected in line and "simulation.yaml" in line
