# SPDX-License-Identifier: Apache-2.0
"""`equilibrium profile`: what it prints and writes, and one clear line for what cannot be done."""

import csv
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.cli.profile import quantities
from controller.cli.profile.about import capture_sizes
from controller.costs.measurements import format_measurements
from controller.errors import UserError
from controller.runtime.profiling import nixl_sweep
from controller.runtime.resources import read_profile

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
ACTIONS = ("list", "show", "fit", "live", "validate", "kv-transfer")
FIT = ("profile", "fit", "--name", "mine")


def steps_csv(path, slow=1.0, count=400, seed=0):
    """Steps of the shipped profile, `slow` times as long."""
    cost, rng, rows = read_profile("dense70b_tp4").cost_model(), random.Random(seed), []
    for _ in range(count):
        batch = rng.choice((0, 1, 4, 16, 64))
        context = batch * rng.randrange(100, 4000)
        chunk = rng.randrange(16, 2048) if batch == 0 or rng.random() < 0.3 else 0
        history = 64 * rng.randrange(60) if chunk and rng.random() < 0.5 else 0
        step_s = cost.step_s(batch, context, chunk, chunk * (history + chunk / 2))
        rows.append((batch, context, chunk, history, 1e3 * slow * step_s))
    path.write_text(format_measurements(rows))
    return path


def one_line(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize("action", ACTIONS)
def test_help_of_every_action_says_what_it_does(action, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["profile", action, "--help"])
    assert ended.value.code == 0
    assert action in capsys.readouterr().out


def test_help_needs_neither_dynamo_nor_nixl_nor_the_heavy_libraries():
    code = (
        "import sys; from controller.cli.main import main\n"
        f"for action in {ACTIONS}:\n"
        "    try: main(['profile', action, '--help'])\n"
        "    except SystemExit: pass\n"
        "heavy = {'dynamo', 'nixl', 'numpy', 'numba', 'scipy', 'pandas', 'torch', 'matplotlib'}\n"
        "sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_list_names_every_shipped_profile(capsys):
    assert main(["profile", "list"]) == 0
    assert "dense70b_tp4" in capsys.readouterr().out


def test_show_prints_provenance_and_predictions_with_units(capsys):
    assert main(["profile", "show", "dense70b_tp4"]) == 0
    out = capsys.readouterr().out
    assert "Illustrative" in out and "GB/s" in out
    # 15 ms + 2,048 * 0.0523 ms + 2,048^2/2 * 0.9 ns
    assert "prefill of 2,048 tokens" in out and "124.00" in out


def test_fit_writes_a_profile_and_says_how_wrong_it_is(capsys, tmp_path):
    steps, out = steps_csv(tmp_path / "steps.csv"), tmp_path / "mine.json"
    command = [*FIT, "--measurements", steps, "--out", out, "--gpu", "H200 x4", "--tp", 4]
    assert main([*map(str, command), "--kv-from", "dense70b_tp4"]) == 0
    assert "not seen" in capsys.readouterr().out
    made, truth = read_profile(out), read_profile("dense70b_tp4")
    assert made.gpu == "H200 x4" and made.parallelism.tp == 4
    assert made.kv_transfer == truth.kv_transfer
    assert made.fit_error is not None and made.fit_error.overall.count == 80
    for batch, context, chunk in ((1, 2000, 0), (32, 60000, 0), (0, 0, 1500), (16, 30000, 700)):
        pairs = chunk**2 / 2
        assert made.cost_model().step_s(batch, context, chunk, pairs) == pytest.approx(
            truth.cost_model().step_s(batch, context, chunk, pairs), rel=0.02
        )


def test_fit_says_that_kv_was_not_measured(tmp_path):
    steps, out = steps_csv(tmp_path / "steps.csv"), tmp_path / "mine.json"
    assert main([*FIT, "--measurements", str(steps), "--out", str(out)]) == 0
    assert "KV transfer not measured" in read_profile(out).provenance


def test_validate_prints_errors_and_draws_them(capsys, tmp_path):
    steps = steps_csv(tmp_path / "steps.csv", slow=1.1)
    command = ["profile", "validate", "--profile", "dense70b_tp4", "--measurements", str(steps)]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    # Predicted 1 / 1.1 of what was measured.
    assert "9.1 %" in out and "-9.1 %" in out and "decode, batch 1" in out
    assert (tmp_path / "out" / "validation.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "out" / "validation.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 400
    assert all(float(row["error_pct"]) == pytest.approx(-9.09, abs=0.01) for row in rows)
    assert main([*command, "--slowdown", "1.1"]) == 0
    assert "0.0 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("show", "nowhere"), "shipped by name"),
        (("show", "nowhere"), "all: equilibrium profile list"),
        (("validate", "--profile", "dense70b_tp4", "--measurements", "none.csv"), "none.csv"),
        (
            ("validate", "--profile", "dense70b_tp4", "--measurements", "x", "--slowdown", "0"),
            "--slowdown",
        ),
        (("live", "--name", "x", "--out", "x.json", "--run-dir", "nowhere"), "nowhere"),
        (("live", "--name", "x", "--out", "x.json", "--endpoint", "a.b"), "--endpoint a.b"),
        (("live", "--name", "x", "--out", "x.json", "--duration", "soon"), "--duration soon"),
        (("live", "--name", "x", "--out", "x.txt"), ".json"),
        (("live", "--name", "x", "--out", "x.json", "--config", "local_1p2d"), "--run-dir"),
        (
            ("live", "--name", "x", "--out", "x.json", "--config", "a", "--namespace", "b"),
            "give one of",
        ),
        (
            ("live", "--name", "x", "--out", "x.json", "--namespace", "b", "--request-plane", "x"),
            "unknown discovery backend or plane",
        ),
        (("live", "--name", "x", "--out", "x.json", "--warm-up", "-1"), "--warm-up -1"),
        (("live", "--name", "x", "--out", "x.json", "--seed", "-1"), "--seed -1"),
        (("live", "--name", "x", "--out", "x.json", "--tp", "0"), "--tp 0"),
        (("live", "--name", "x", "--out", "x.json", "--block-size", "0"), "--block-size 0"),
        (("live", "--name", "", "--out", "x.json"), "--name: must not be empty"),
        (
            ("validate", "--profile", "dense70b_tp4", "--measurements", "x", "--slowdown", "inf"),
            "0",
        ),
        (("kv-transfer", "--sizes", "1K,2K"), "at least three"),
        (("kv-transfer", "--sizes", "1K,2K,big"), "--sizes big"),
        (("kv-transfer", "--memory", "vram"), "no GPU"),
        (("kv-transfer", "--profile", "dense70b_tp4"), "--out"),
        (("kv-transfer", "--repeats", "0"), "--repeats"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nixl_sweep, "check_installed", lambda: None)
    assert expected in one_line(capsys, "profile", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_table_is_named_by_row_and_column(capsys, tmp_path):
    steps = steps_csv(tmp_path / "steps.csv", count=20)
    lines = steps.read_text().splitlines()
    lines[5] = lines[5].rsplit(",", 1)[0] + ",slow"
    steps.write_text("\n".join(lines))
    line = one_line(capsys, *FIT, "--measurements", steps, "--out", tmp_path / "x.json")
    assert "row 6" in line and "step_ms" in line
    assert not (tmp_path / "x.json").exists()


def test_an_output_that_exists_is_not_overwritten(capsys, tmp_path):
    steps, out = steps_csv(tmp_path / "steps.csv"), tmp_path / "mine.json"
    out.write_text("precious")
    assert "exists already" in one_line(capsys, *FIT, "--measurements", steps, "--out", out)
    assert out.read_text() == "precious"
    assert main([*FIT, "--measurements", str(steps), "--out", str(out), "--force"]) == 0
    assert json.loads(out.read_text())["name"] == "mine"


def test_without_nixl_the_line_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr(nixl_sweep.importlib.util, "find_spec", lambda name: None)
    assert "pip install" in one_line(capsys, "profile", "kv-transfer")


@pytest.mark.parametrize(
    ("text", "seconds"), [("120", 120.0), ("120s", 120.0), ("2m", 120.0), ("500ms", 0.5)]
)
def test_durations_are_read_with_their_unit(text, seconds):
    assert quantities.seconds(text, "--duration") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "1d", "nan", "inf"])
def test_a_duration_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="--duration"):
        quantities.seconds(text, "--duration")


def test_sizes_are_powers_of_1024_and_ascend():
    assert quantities.sizes("1M,64K,4096,2GiB", "--sizes") == (4096, 65536, 2**20, 2**31)
    assert quantities.readable(3 * 2**19) == "1.5 MiB"


@pytest.mark.parametrize("text", ["", "x", "0", "1T", "1K,1024"])
def test_a_size_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="--sizes"):
        quantities.sizes(text, "--sizes")


def test_capture_sizes_ascend():
    assert capture_sizes("1,2,4") == (1, 2, 4)
    assert capture_sizes("none") == capture_sizes("auto") == ()
    for text in ("2,1", "0,1", "a", ""):
        with pytest.raises(UserError, match="--capture-sizes"):
            capture_sizes(text)
