# SPDX-License-Identifier: Apache-2.0
"""The decision log's files, and what `equilibrium explain` makes of them."""

import pytest
from relay_kit import RelayHarness, answers, router_row

from analysis.explain import explain
from controller.cli.main import main
from controller.routing.decision_record import OutcomeRow, RouterRow, read_line, read_rows
from controller.runtime.router.decision_log import DecisionLog, log_lines
from controller.runtime.router.run_files import replica_logs

pytestmark = pytest.mark.unit


def outcome(number):
    return OutcomeRow(f"r{number}", 0, 7, "finished", 80.0, None, None, 1, 9.0)


def test_full_files_are_turned_over_and_the_oldest_goes(tmp_path):
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, router_row("toll"), max_bytes=1000, files=3)
    for number in range(100):
        log.write(outcome(number))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == [
        "decisions.jsonl",
        *(f"{path.name}.{k}" for k in (1, 2)),
    ]
    assert all(each.stat().st_size <= 1000 for each in files)
    assert all(isinstance(read_line(f.read_text().splitlines()[0]), RouterRow) for f in files)
    rows = [row for row in read_rows(log_lines(path)) if isinstance(row, OutcomeRow)]
    assert [row.request_id for row in rows] == [f"r{k}" for k in range(100 - len(rows), 100)]


def test_a_restarted_router_goes_on_in_the_same_file(tmp_path):
    path = tmp_path / "decisions.jsonl"
    for number in range(2):
        log = DecisionLog(path, router_row("toll"))
        log.write(outcome(number))
        log.close()
    assert [type(row) for row in read_rows(log_lines(path))] == [RouterRow, OutcomeRow] * 2


def test_without_room_no_request_fails(tmp_path, caplog):
    log = DecisionLog(tmp_path / "missing" / "decisions.jsonl", router_row("toll"))
    log.write(outcome(1))
    log.write(outcome(2))
    assert caplog.text.count("decision_log_lost") == 1


def test_zero_megabytes_write_nothing(tmp_path):
    DecisionLog(tmp_path / "d.jsonl", router_row("toll"), max_bytes=0).write(outcome(1))
    assert not list(tmp_path.iterdir())


async def test_a_stream_is_explained_with_every_candidate(unit_costs, tmp_path):
    relay = RelayHarness(unit_costs, tmp_path, {5: answers, 6: answers}, policy="toll")
    relay.decode_state.sync((5, 6))
    await relay.run()
    relay.log.close()
    page = "\n".join(explain(log_lines(relay.log_path), "r1"))
    for word in ("prefill 1", "decode 5", "decode 6", "because toll_", "stream finished", "TTFT"):
        assert word in page, page
    assert page.count("* ") == 1
    assert explain(log_lines(relay.log_path), "r2") == []


async def test_the_outcome_of_a_stream_is_measured(unit_costs, tmp_path):
    relay = RelayHarness(unit_costs, tmp_path, {5: answers})
    await relay.run(max_tokens=4)
    (row,) = relay.records("outcome")
    assert (row["finish"], row["output_tokens"], row["decode_id"]) == ("finished", 4, 5)
    assert 0 <= row["ttft_ms"] < 5000 and row["itl_max_ms"] >= row["itl_ms"] >= 0
    assert relay.registry.get_sample_value("dynamo_equilibrium_ttft_seconds_count") == 1


def test_the_command_says_what_is_missing(tmp_path, capsys):
    assert main(["explain", "r1", "--run-dir", str(tmp_path)]) == 2
    (tmp_path / "decisions-1.jsonl").write_text("")
    assert [p.name for p in replica_logs(tmp_path)] == ["decisions-1.jsonl"]
    assert main(["explain", "r1", "--run-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 2
