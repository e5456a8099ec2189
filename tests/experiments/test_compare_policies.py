# SPDX-License-Identifier: Apache-2.0
"""The comparison of policies: its statistics by hand, one real cell, what it refuses."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

from experiments import compare_policies
from experiments import policy_cells as cells
from experiments.policy_statistics import (
    AMPD,
    DEFLECTION,
    DYNAMO,
    PLAIN,
    ampd_claim,
    bootstrap_ratio,
    crossing,
    deflection_claim,
    falling,
    paired_interval,
    r90,
)

pytestmark = pytest.mark.unit

RATES = np.array([1.0, 2.0, 3.0, 4.0])
FINE = [True] * 4


def seeds(*curve: float):
    """The same curve for three seeds."""
    return np.repeat(np.array(curve)[:, None], 3, axis=1)


def test_a_curve_never_rises_with_the_load():
    assert list(falling(np.array([0.9, 1.0, 0.5]))) == pytest.approx([0.95, 0.95, 0.5])


def test_the_crossing_is_linear_between_rates():
    # 1.0 at 2/s, 0.8 at 3/s: 0.9 half way.
    assert crossing(RATES, np.array([1.0, 1.0, 0.8, 0.1]), 0.9) == pytest.approx(2.5)
    assert crossing(RATES, np.array([1.0, 1.0, 1.0, 0.95]), 0.9) == 4.0  # a lower bound
    assert crossing(RATES, np.array([0.45, 0.4, 0.3, 0.1]), 0.9) == pytest.approx(0.5)


def test_the_rate_sustained_needs_the_longest_prompts_and_a_level_backlog():
    whole = seeds(1.0, 1.0, 0.8, 0.1)
    assert r90(RATES, whole, seeds(1.0, 1.0, 1.0, 1.0), FINE) == pytest.approx(2.5)
    # The longest decile passes 0.8 at 1.5/s.
    assert r90(RATES, whole, seeds(1.0, 0.6, 0.1, 0.0), FINE) == pytest.approx(1.5)
    assert r90(RATES, whole, seeds(1.0, 1.0, 1.0, 1.0), [True, False, False, False]) == 2.0
    # A backlog that grows at one rate and not at higher ones does so by chance.
    by_chance = [False, True, True, True]
    assert r90(RATES, whole, seeds(1.0, 1.0, 1.0, 1.0), by_chance) == pytest.approx(2.5)


def test_a_ratio_of_equal_curves_is_one_with_no_width():
    side = (seeds(1.0, 1.0, 0.8, 0.1), seeds(1.0, 1.0, 1.0, 1.0))
    assert bootstrap_ratio(side, side, RATES, (FINE, FINE)) == (1.0, 1.0, 1.0)


def test_the_margin_is_against_the_best_other_combination_by_either_criterion():
    rows = pd.DataFrame(
        [
            ("w", 1.0, cells.DEFAULT.name, 0.80, 0.70),
            ("w", 1.0, "other+fifo", 0.78, 0.75),
            ("w", 1.0, "third+fifo", 0.50, 0.10),
        ],
        columns=["workload", "load", "rule", "attainment", "attainment_p99_gap"],
    )
    found = list(compare_policies.margins(rows))
    assert [margin for margin, _ in found] == pytest.approx([2.0, -5.0])
    assert "other+fifo" in found[1][1]


def test_what_the_papers_claim_is_measured_where_it_can_be():
    rows = pd.DataFrame(
        [
            ("w", 1.0, DYNAMO, 0.50, 1000.0, 20.0, 60.0),
            ("w", 1.0, AMPD, 0.75, 900.0, 20.0, 60.0),  # + 50 %
            ("w", 2.0, DYNAMO, 0.10, 1000.0, 20.0, 60.0),  # below 20 %: no ratio
            ("w", 2.0, AMPD, 0.40, 900.0, 20.0, 60.0),
            ("w", 1.0, PLAIN, 0.50, 1000.0, 20.0, 60.0),
            ("w", 1.0, DEFLECTION, 0.50, 400.0, 50.0, 60.0),  # - 60 %, gaps within 60 ms
            ("w", 2.0, PLAIN, 0.50, 1000.0, 20.0, 60.0),
            ("w", 2.0, DEFLECTION, 0.50, 100.0, 70.0, 60.0),  # gaps beyond: does not count
        ],
        columns=[
            "workload",
            "load",
            "rule",
            "attainment",
            "ttft_p95_ms",
            "gap_p95_ms",
            "slo_itl_ms",
        ],
    )
    ampd, kairos = ampd_claim(rows), deflection_claim(rows)
    assert (ampd["mean_gain"], ampd["cells"], ampd["cells_ahead"]) == (0.5, 1, 1)
    assert (kairos["most_with_tbt_kept"], kairos["cells_with_tbt_kept"]) == (0.6, 1)


def test_the_interval_of_paired_differences():
    # Mean 1, standard deviation 1, t(2) = 4.3027: half width 4.3027 / sqrt(3).
    low, high = paired_interval(np.array([0.0, 1.0, 2.0]))
    assert (low, high) == pytest.approx((1 - 2.48414, 1 + 2.48414), abs=1e-4)
    assert paired_interval(np.array([3.0])) == (3.0, 3.0)


def test_the_default_is_inferior_only_where_the_interval_says_so():
    rows = pd.DataFrame(
        [
            ("w", 1.0, rule, seed, value, value)
            for rule, values in ((cells.DEFAULT.name, (0.8, 0.7)), ("other+fifo", (0.805, 0.705)))
            for seed, value in enumerate(values)
        ],
        columns=["workload", "load", "rule", "seed", "attainment", "attainment_p99_gap"],
    )
    assert compare_policies.non_inferior(rows) == (2, 2)  # half a point behind, in every seed
    rows.loc[rows["rule"] == "other+fifo", "attainment"] += 0.02
    assert compare_policies.non_inferior(rows) == (1, 2)


def test_the_default_and_every_published_form_are_in_the_quick_selection():
    chosen = compare_policies.chosen_rules(quick=True)
    assert {cells.DEFAULT, cells.AMPD, *cells.PUBLISHED} <= set(chosen)
    assert set(chosen) < set(cells.all_rules())


def test_a_backlog_that_grows_in_every_seed_is_not_sustained():
    assert cells.is_sustained([0.1, -0.1, 0.05])
    assert not cells.is_sustained([0.5, 0.52, 0.49])


@pytest.mark.parametrize(
    "arguments", [("--seeds", 0), ("--loads", -1), ("--jobs", 0), ("--azure", "/no/such.csv")]
)
def test_bad_arguments_are_one_line(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["compare_policies", *map(str, arguments)])
    assert compare_policies.main() == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


@pytest.mark.timeout(900)  # may compile the simulator
def test_a_cell_counts_everybody_and_is_the_same_twice():
    (scene,) = [s for s in cells.scenes(None, None) if s.name == "hotpotqa"]
    first, slope = cells.run_cell(scene, 4.0, cells.DEFAULT, cells.Deployment(), 1)
    again, same_slope = cells.run_cell(scene, 4.0, cells.DEFAULT, cells.Deployment(), 1)
    assert (first, slope) == (again, same_slope)
    ends = first.served + first.rejected + first.failed + first.unfinished + first.never_issued
    assert ends == first.requests > 100
    assert 0.0 < first.attainment <= 1.0
