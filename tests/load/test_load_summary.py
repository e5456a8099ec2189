# SPDX-License-Identifier: Apache-2.0
"""Summary arithmetic, worked by hand, and the files of a run."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import pytest

from controller.errors import UserError
from controller.runtime.load import (
    RequestRow,
    Status,
    read_trace,
    rows_to_frame,
    served_all,
    summarize,
    write_rows,
    write_summary,
)
from controller.types import Slo

pytestmark = pytest.mark.unit

SLO = Slo(ttft_ms=1000, itl_ms=50)

OK = RequestRow(
    request_id="r",
    response_id="d",
    session_id="a",
    round=0,
    line=1,
    phase="calm",
    scheduled_s=1.0,
    sent_s=1.0,
    status=Status.OK,
    http_status=200,
    error=None,
    prompt_tokens=100,
    prompt_tokens_intended=100,
    output_tokens=10,
    output_tokens_intended=10,
    ttft_ms=200.0,
    send_delay_ms=0.0,
    itl_mean_ms=20.0,
    tbt_max_ms=40.0,
    tbt_p99_ms=30.0,
    e2e_ms=1000.0,
    prefill_wait_ms=50.0,
    prefill_ms=100.0,
    handover_ms=50.0,
    server_ttft_ms=150.0,
    prefill_worker_id="18446744073709551615",
    decode_worker_id="2",
    cached_tokens=None,
    attained=True,
)
UNSEEN = (
    *("ttft_ms", "itl_mean_ms", "tbt_max_ms", "tbt_p99_ms", "e2e_ms"),
    *("prefill_wait_ms", "prefill_ms", "handover_ms", "server_ttft_ms"),
    *("prefill_worker_id", "decode_worker_id", "output_tokens", "http_status"),
)


def missed(status: Status, **more: object) -> RequestRow:
    return replace(OK, **(dict.fromkeys(UNSEEN) | {"status": status, "attained": False} | more))


def rows() -> list[RequestRow]:
    return [
        OK,
        replace(
            OK, line=2, round=1, scheduled_s=3.0, sent_s=3.5, ttft_ms=400.0, send_delay_ms=500.0
        ),
        replace(
            OK,
            line=3,
            session_id="b",
            phase="burst",
            scheduled_s=4.0,
            sent_s=4.0,
            ttft_ms=3000.0,
            e2e_ms=5000.0,
            tbt_max_ms=90.0,
            attained=False,
        ),
        missed(Status.TIMEOUT, line=4, session_id="c", phase="burst", e2e_ms=2000.0, error="late"),
        missed(Status.HTTP_ERROR, line=5, session_id="d", phase="burst", error="late"),
        missed(Status.UNFINISHED, line=6, session_id="e", phase="burst"),
        missed(
            Status.NEVER_SENT,
            line=7,
            round=1,
            session_id="c",
            phase="burst",
            scheduled_s=None,
            sent_s=None,
            send_delay_ms=None,
        ),
    ]


def test_counts_and_shares_are_over_intended_requests() -> None:
    summary = summarize(rows(), SLO)
    total = summary.total
    counts = (total.intended, total.ok, total.failed, total.unfinished, total.never_sent)
    assert counts == (7, 3, 2, 1, 1)
    assert total.attained == 2
    assert total.attainment == pytest.approx(2 / 7)
    assert (total.sessions, total.sessions_attained) == (5, 1)
    assert not served_all(summary)
    assert summary.errors == (("late", 2),)


def test_rates_are_over_first_due_to_last_end() -> None:
    total = summarize(rows(), SLO).total
    # First due at 1.0, last end at 4.0 + 5.0.
    assert total.span_s == pytest.approx(8.0)
    assert total.goodput_per_s == pytest.approx(2 / 8)
    assert total.output_tokens_per_s == pytest.approx(30 / 8)


def test_percentiles_are_over_finished_requests() -> None:
    total = summarize(rows(), SLO).total
    assert total.ttft_ms.count == 3
    assert total.ttft_ms.mean == pytest.approx(1200)
    assert total.ttft_ms.p50 == 400
    assert total.ttft_ms.p95 == pytest.approx(400 + 0.9 * 2600)
    assert total.ttft_ms.max == 3000
    assert total.handover_ms.mean == 50
    assert total.tbt_max_ms == 90
    assert total.send_delay_ms.count == 6


def test_phases_and_slices_partition_the_rows() -> None:
    summary = summarize(rows(), SLO)
    assert [(group.name, group.intended) for group in summary.phases] == [("calm", 2), ("burst", 5)]
    assert summary.phases[0].attainment == 1.0
    assert [(each.name, each.intended, each.attained) for each in summary.by_round] == [
        ("round 0", 5, 1),
        ("round 1", 2, 1),
    ]
    assert summary.by_prompt_decile == ()


def test_prompt_deciles_are_ordered_and_complete() -> None:
    many = [replace(OK, line=n, prompt_tokens_intended=1000 - n) for n in range(25)]
    deciles = summarize(many, SLO).by_prompt_decile
    assert len(deciles) == 10
    assert sum(each.intended for each in deciles) == 25
    assert deciles[0].name == "976-977"
    assert deciles[-1].name.endswith("-1000")


@pytest.mark.parametrize("kept", [[], [6]])
def test_empty_sets_are_unknown_not_zero(kept: list[int]) -> None:
    total = summarize([rows()[n] for n in kept], SLO).total
    assert total.goodput_per_s is None
    assert total.output_tokens_per_s is None
    assert total.tbt_max_ms is None
    assert (total.ttft_ms.count, total.ttft_ms.mean, total.ttft_ms.p99) == (0, None, None)
    assert total.attainment == (0.0 if kept else None)


def test_a_frame_has_all_columns_and_keeps_unknown_apart_from_zero() -> None:
    frame = rows_to_frame(rows())
    assert list(frame.columns) == [field.name for field in fields(RequestRow)]
    assert frame["output_tokens"].isna().sum() == 4
    assert frame["status"].tolist()[3] == "timeout"
    assert list(rows_to_frame([]).columns) == list(frame.columns)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_written_rows_read_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_rows(rows(), path)
    read = pd.read_csv(path) if name.endswith(".csv") else pd.read_parquet(path)
    assert len(read) == 7
    assert read["ttft_ms"].sum() == pytest.approx(3600)
    assert str(read["prefill_worker_id"][0]).startswith("184467440737")
    assert list(tmp_path.iterdir()) == [path]


def test_existing_files_are_refused_without_force(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("mine")
    with pytest.raises(UserError, match="exists already; give another name or --force"):
        write_rows(rows(), path)
    assert path.read_text() == "mine"
    write_rows(rows(), path, force=True)
    assert path.read_text().startswith("request_id,")


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(UserError, match=r"cannot write .No space left"):
        write_rows(rows(), tmp_path / "rows.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rows.txt", "nowhere/rows.csv", "."])
def test_impossible_outputs_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError):
        write_rows(rows(), tmp_path / name)


def test_the_summary_file_is_json_without_nan(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(summarize(rows()[6:], SLO), path)
    value = json.loads(path.read_text())
    assert value["schema"] == "equilibrium.load-summary/1"
    assert value["slo"] == {"ttft_ms": 1000, "itl_ms": 50}
    assert value["total"]["never_sent"] == 1
    assert value["total"]["ttft_ms"]["p99"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read the trace"), (b"\xff\xfe\x00", "not UTF-8 text")],
)
def test_unreadable_traces_are_user_errors(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "t.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_trace(path)
