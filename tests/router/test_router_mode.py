# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from analysis.shadow_report import shadow_report
from controller.cli.main import main
from controller.errors import UserError
from controller.runtime.router.mode import Mode, ModeFile, get_mode, set_mode

pytestmark = pytest.mark.unit


def test_the_mode_follows_the_file_and_survives_a_restart(tmp_path):
    mode = ModeFile(tmp_path, Mode.SHADOW)
    assert mode.shadow
    set_mode(tmp_path, Mode.ACT)
    mode.refresh()
    assert not mode.shadow
    assert not ModeFile(tmp_path, Mode.SHADOW).shadow


@pytest.mark.parametrize("text", ["", "shadowy", "\xff\xfe"])
def test_an_unreadable_mode_changes_nothing(tmp_path, text):
    mode = ModeFile(tmp_path, Mode.SHADOW)
    (tmp_path / "mode").write_text(text)
    mode.refresh()
    assert mode.shadow


def test_a_folder_without_a_router_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="run folder"):
        set_mode(tmp_path, Mode.ACT)
    with pytest.raises(UserError, match="run folder"):
        get_mode(tmp_path)


def row(place, worker, would_place=None, would_worker=None):
    values = {"place": place, "worker_id": worker}
    if would_place:
        values |= {
            "would_place": would_place,
            "would_worker_id": would_worker,
            "would_reason": "why",
        }
    return json.dumps(values)


def test_the_report_counts_what_would_differ():
    report = shadow_report(
        [
            row("remote", 1, "remote", 1),
            row("remote", 1, "remote", 2),
            row("remote", 1, "local", None),
            row("remote", 1),  # acting: not counted
            '{"place": "rem',  # the router was killed here
        ]
    )
    assert (report.requests, report.same, report.other_worker, report.local_instead) == (3, 1, 1, 1)
    assert report.differing_share == pytest.approx(2 / 3)
    assert report.reasons == (("remote: why", 2), ("local: why", 1))


def test_the_command_switches_and_reports(tmp_path, capsys):
    ModeFile(tmp_path, Mode.ACT)
    (tmp_path / "decisions.jsonl").write_text(row("remote", 1, "local", None) + "\n")
    assert main(["mode", "--run-dir", str(tmp_path), "shadow"]) == 0
    assert main(["mode", "--run-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "shadow" in out and "1 local" in out
    assert main(["mode", "--run-dir", str(tmp_path / "none")]) == 2
