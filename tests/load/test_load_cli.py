# SPDX-License-Identifier: Apache-2.0
"""`equilibrium load` from the outside: exit codes, one-line errors, files, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from load_support import FakeServer, never, status, streaming, threaded

from controller.cli.main import main

pytestmark = pytest.mark.integration

ROWS = (
    '{"timestamp": 0, "session_id": "a", "input_length": 20, "output_length": 2}\n'
    '{"delay": 5, "session_id": "a", "input_length": 5, "output_length": 2}\n'
    '{"timestamp": 30, "session_id": "b", "input_length": 20, "output_length": 2}\n'
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.jsonl"
    path.write_text(ROWS)
    return str(path)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with threaded(FakeServer(streaming())) as running:
        yield running


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("equilibrium load: ")
    return lines[0]


def test_a_served_run_exits_0_and_writes_rows_and_summary(
    server: FakeServer, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, summary = tmp_path / "rows.csv", tmp_path / "summary.json"
    code = main(
        [
            *("load", "--trace", trace, "--url", server.url, "--out", str(out)),
            *("--summary-json", str(summary), "--phase", "calm=0:0.02", "--phase", "burst=0.02:"),
        ]
    )
    captured = capsys.readouterr()
    assert code == 0
    assert len(pd.read_csv(out)) == 3
    assert json.loads(summary.read_text())["total"]["ok"] == 3
    for words in (
        "calm",
        "burst",
        "SLO attainment",
        "100.0%",
        "over finished requests only",
    ):
        assert words in captured.out
    assert "t: 3 requests in 2 sessions" in captured.err
    assert "3/3 done" in captured.err


def test_quiet_prints_the_result_only(
    server: FakeServer, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", "--trace", trace, "--url", server.url, "--quiet", "--limit", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "tiny" in captured.out


def test_failed_requests_exit_1_and_say_why(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with threaded(FakeServer(status(503, {"message": "no [worker] left"}))) as broken:
        code = main(["load", "--trace", trace, "--url", broken.url, "--quiet"])
    captured = capsys.readouterr()
    assert code == 1
    assert "failed 2 times: no [worker] left" in captured.out
    assert " -/-/-" in captured.out


def test_the_time_limit_exits_1(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with threaded(FakeServer(never)) as stuck:
        code = main(
            ["load", "--trace", trace, "--url", stuck.url, "--quiet", "--time-limit", "0.2"]
        )
    assert code == 1
    assert "The time limit ended the run." in capsys.readouterr().out


def test_ctrl_c_writes_what_there_is_and_exits_130(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.parquet"
    with threaded(FakeServer(never)) as stuck:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        code = main(["load", "--trace", trace, "--url", stuck.url, "--quiet", "--out", str(out)])
        timer.join()
    assert code == 130
    assert pd.read_parquet(out)["status"].tolist() == ["unfinished", "never_sent", "unfinished"]
    assert "Interrupted" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_quantised_clock_is_named(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(
        "".join(
            f'{{"timestamp": {3000 * (n // 3)}, "input_length": 5, "output_length": 1}}\n'
            for n in range(60)
        )
    )
    arguments = ["load", "--trace", str(path), "--url", server.url, "--rate-scale", "500"]
    assert main(arguments) == 0
    assert (
        "bins of 3 s; arrivals are replayed as batches (--spread-bins)" in capsys.readouterr().err
    )
    assert main([*arguments, "--spread-bins"]) == 0
    assert "arrivals are spread inside them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--trace", "/nowhere/t.jsonl"], "/nowhere/t.jsonl: cannot read the trace"),
        (["--url", "localhost:1"], "give http://HOST:PORT"),
        (["--url", "http://127.0.0.1:9"], "cannot be reached"),
        (["--phase", "calm"], "give name=START:END"),
        (["--rate-scale", "0"], "rate scale is 0.0: give a number above 0"),
        (["--time-scale", "-1"], "--time-scale -1.0: give a number above 0"),
        (["--max-prompt", "1"], "no request is left"),
        (["--out", "rows.txt"], "end the name in .csv or .parquet"),
        (["--out", "/nowhere/rows.csv"], "its folder does not exist"),
        (["--header", "nothing"], "give 'NAME: VALUE'"),
    ],
)
def test_what_the_user_can_fix_is_one_line_and_exit_2(
    server: FakeServer,
    trace: str,
    capsys: pytest.CaptureFixture[str],
    extra: list[str],
    message: str,
) -> None:
    code = main(["load", "--trace", trace, "--url", server.url, "--quiet", *extra])
    assert code == 2
    assert message in one_line(capsys)


def test_a_broken_line_is_named_and_exit_2(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(ROWS + "oops\n")
    assert main(["load", "--trace", str(path), "--url", server.url]) == 2
    assert f"{path}:4: broken JSON" in one_line(capsys)


def test_an_existing_output_is_refused_before_anything_is_sent(
    server: FakeServer, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.csv"
    out.write_text("mine")
    sent = len(server.received)
    arguments = ["load", "--trace", trace, "--url", server.url, "--quiet", "--out", str(out)]
    assert main(arguments) == 2
    assert "exists already" in one_line(capsys)
    assert len(server.received) == sent
    assert out.read_text() == "mine"
    assert main([*arguments, "--force"]) == 0
    assert out.read_text().startswith("request_id")


def test_help_names_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["load", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--trace", "--url", "--endpoint", "--plain", "--no-ignore-eos", "--spread-bins"):
        assert flag in text
