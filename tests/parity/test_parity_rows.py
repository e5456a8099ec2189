# SPDX-License-Identifier: Apache-2.0
"""When an attachment counts as worse than stock, and what the page says then."""

import pytest
from parity_rows import Row, Seen, Verdict, cell, complaints, page, verdict

pytestmark = pytest.mark.unit

ROW = Row("Pinned blocks", ("freed", "freed late", "kept"))
LATE = Seen("freed late")


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ("freed", Verdict.BETTER),
        ("freed late", Verdict.SAME),
        ("kept", Verdict.WORSE),
        ("on fire", Verdict.WORSE),
    ],
)
def test_outcomes_rank_best_first_and_an_unknown_one_is_the_worst(ours, expected):
    assert verdict(ROW, LATE, Seen(ours)) is expected


def test_equal_outcomes_with_other_answers_are_worse():
    stock, ours = Seen("freed", [1]), Seen("freed", [2])
    assert verdict(ROW, stock, ours) is Verdict.WORSE
    assert cell(ROW, "relay", stock, ours) == "worse: other answers"


def test_worse_needs_a_reason_and_a_reason_needs_to_be_needed():
    seen = {"stock": LATE, "relay": Seen("kept")}
    excused = Row(ROW.title, ROW.outcomes, {"relay": "it forgets"})
    assert "no reason" in complaints(ROW, seen)[0]
    assert complaints(excused, seen) == []
    assert "but it is not" in complaints(excused, {"stock": LATE, "relay": LATE})[0]


def test_an_outcome_that_no_row_knows_is_a_complaint_also_of_stock():
    assert len(complaints(ROW, {"stock": Seen("?"), "relay": Seen("?")})) == 2


def test_the_page_has_a_line_a_row_escapes_bars_and_ends_with_the_notes():
    row = Row("a | b", ("good", "bad"), {"relay": "why"}, note="mind this")
    seen = {
        "stock": {row.title: Seen("good")},
        "broker": {row.title: Seen("good")},
        "relay": {row.title: Seen("bad")},
    }
    lines = page([row], seen, "# Head\n").splitlines()
    assert lines[:2] == ["# Head", ""]
    assert lines[-3:] == [
        "| a \\| b | good | as stock | worse: bad (why) |",
        "",
        "- a | b: mind this",
    ]
