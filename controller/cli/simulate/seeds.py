# SPDX-License-Identifier: Apache-2.0
"""Figures of several seeds: mean and half-width of a 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.intervals import mean_interval
from controller.simulation.report.summary import SimSummary, flat_figures

Interval = list[float | None]


def intervals(summaries: Sequence[SimSummary]) -> dict[str, Interval]:
    """[mean, half-width] of every figure that each seed has; half-width None for one seed.

    A reason that a seed never met counts as 0 there.
    """
    every = [flat_figures(summary) for summary in summaries]
    names = dict.fromkeys(name for figures in every for name in figures)
    found: dict[str, Interval] = {}
    for name in names:
        values = [figures.get(name, 0.0) for figures in every]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            found[name] = mean_interval(known)
    return found
