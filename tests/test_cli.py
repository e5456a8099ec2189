# SPDX-License-Identifier: Apache-2.0
"""The command line: help without Dynamo, one clear line and exit 2 for what the user can fix."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.main import COMMANDS, main

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parent.parent
GOOD = "schema: equilibrium.deployment/1\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_works_for_every_command(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert command in capsys.readouterr().out


def test_help_imports_neither_dynamo_nor_the_heavy_libraries():
    code = (
        "import sys; from controller.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'dynamo', 'pandas', 'matplotlib', 'aiohttp', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def one_line(capsys, arguments):
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.err
    return lines[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "frontnd: {}\n", "unknown key 'frontnd', did you mean 'frontend'?"),
        (GOOD + "router: {polcy: ampd}\n", "unknown key 'router.polcy'"),
        (GOOD + "router: {policy: best}\n", "router.policy"),
        (GOOD + "router: {ordering: {rule: lifo}}\n", "router.ordering.rule"),
        (GOOD + "router: {ordering: {late_share: 1.0}}\n", "router.ordering.late_share"),
        (
            GOOD + "router: {ordering: {rule: algorithm_2, window: 6}}\n",
            "window of algorithm_2 must be 1 to 5",
        ),
        (
            GOOD + "router: {attachment: relay, ordering: {rule: fifo, reject: true}}\n",
            "reject needs a rule that tells late work",
        ),
        (
            GOOD + "router: {ordering: {rule: hopeless_last, reject: true}}\n",
            "ordering.reject needs attachment: relay",
        ),
        (GOOD + "router: {toll: {guard: 1}}\n", "unknown key 'router.toll.guard'"),
        (GOOD + "slo: {tenants: {gold: {ttft_ms: 0}}}\n", "slo.tenants.gold.ttft_ms"),
        (GOOD + "slo: {tenants: {gold: {ttft: 9}}}\n", "did you mean 'ttft_ms'"),
        (GOOD + "slo: {ttft_ms: -5}\n", "slo.ttft_ms"),
        (GOOD + "slo: {ttft_ms: .nan}\n", "slo.ttft_ms"),
        (GOOD + "decode: {workers: 0}\n", "decode.workers"),
        (GOOD + "router: {profile: nowhere}\n", "nowhere"),
        (GOOD + "frontend: {stream_timeout_s: 5}\n", "quarantine a waiting router"),
        ("schema: equilibrium.deployment/9\n", "schema"),
        ("a: [", "not YAML"),
        ("- 1\n", "expected a mapping"),
    ],
)
def test_a_bad_deployment_file_is_one_line(capsys, tmp_path, text, expected):
    path = tmp_path / "deployment.yaml"
    path.write_text(text)
    line = one_line(capsys, ["up", "--config", path, "--run-dir", tmp_path / "runs"])
    assert expected in line
    assert not (tmp_path / "runs").exists()


def test_a_missing_deployment_file_names_the_shipped_ones(capsys, tmp_path):
    line = one_line(capsys, ["up", "--config", tmp_path / "nope.yaml"])
    assert "does not exist" in line and "local_1p2d" in line


def test_a_port_in_use_is_one_line_and_nothing_is_started(capsys, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = one_line(
            capsys,
            ["up", "--config", "local_1p2d", "--port", port, "--run-dir", tmp_path / "runs"],
        )
    assert str(port) in line and "in use" in line
    assert not (tmp_path / "runs").exists()


def test_a_missing_trace_is_one_line(capsys, tmp_path):
    url = "http://127.0.0.1:9"
    line = one_line(capsys, ["load", "--trace", tmp_path / "none.jsonl", "--url", url])
    assert "none.jsonl" in line


def test_a_broken_trace_line_is_named(capsys, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n{"timestamp": 1,\n')
    line = one_line(capsys, ["load", "--trace", path, "--url", "http://127.0.0.1:9"])
    assert "2" in line and "JSON" in line
