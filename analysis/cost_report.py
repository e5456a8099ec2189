# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured server times as tables, CSV and scatter plots.

Owns: how results look. Does not own: predictions and errors (corrections), where files go (the
caller hands paths in).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.corrections import Factors, Metric, Prediction, errors_pct, factor
from analysis.silicon import Point

Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Errors in per cent of one group of points, raw and corrected."""

    group: Group
    metric: Metric
    points: int
    bias: float
    """Median of predicted/measured before correction."""
    raw_median: float
    raw_p95: float
    median: float
    p95: float


def error_rows(
    predictions: Sequence[Prediction],
    metric: Metric,
    factors: Factors,
    by: Callable[[Prediction], Group],
) -> list[ErrorRow]:
    """One row a group, groups in order."""
    groups: dict[Group, list[Prediction]] = {}
    for each in predictions:
        groups.setdefault(by(each), []).append(each)
    return [_error_row(key, groups[key], metric, factors) for key in sorted(groups)]


def _error_row(
    group: Group, members: Sequence[Prediction], metric: Metric, factors: Factors
) -> ErrorRow:
    raw, corrected = errors_pct(members, metric), errors_pct(members, metric, factors)
    return ErrorRow(
        group=group,
        metric=metric,
        points=len(members),
        bias=float(np.median([1.0 / each.ratio(metric) for each in members])),
        raw_median=float(np.median(raw)),
        raw_p95=float(np.percentile(raw, 95)),
        median=float(np.median(corrected)),
        p95=float(np.percentile(corrected, 95)),
    )


def error_table(rows: Iterable[ErrorRow]) -> list[str]:
    """Lines of text, a header first."""
    names = f"{'points':>6} {'pred/meas':>9} {'raw med':>8} {'raw p95':>8} {'med':>7} {'p95':>7}"
    lines = [f"{'':44} {names}"]
    for row in rows:
        lines.append(
            f"{' '.join(row.group):44} {row.points:6} {row.bias:9.2f} {row.raw_median:7.1f}% "
            f"{row.raw_p95:7.1f}% {row.median:6.1f}% {row.p95:6.1f}%"
        )
    return lines


def coverage_lines(points: Sequence[Point]) -> list[str]:
    """How many points have a prediction, and why the others have none."""
    covered = sum(point.uncovered is None for point in points)
    lines = [f"covered: {covered} of {len(points)} points ({covered / len(points):.0%})"]
    reasons = Counter(point.uncovered for point in points if point.uncovered is not None)
    for reason, count in reasons.most_common():
        models = Counter(point.model for point in points if point.uncovered is reason)
        named = ", ".join(f"{model} {n}" for model, n in models.most_common(6))
        lines.append(f"  not covered, {reason.value}: {count} ({named})")
    return lines


def write_points(path: Path, predictions: Iterable[Prediction], factors: Factors) -> None:
    """Every compared point with its prediction, as CSV."""
    columns = (
        "id,model,system,backend,precision,tp,isl,osl,concurrency,profile,running,"
        "measured_tpot_ms,predicted_tpot_ms,corrected_tpot_ms,"
        "measured_ttft_ms,predicted_ttft_ms,corrected_ttft_ms"
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns.split(","))
        for each in predictions:
            writer.writerow(_csv_row(each, factors))


def _csv_row(each: Prediction, factors: Factors) -> list[object]:
    p = each.point
    tpot = factor(factors, each.group, Metric.TPOT) * each.tpot_ms
    ttft = factor(factors, each.group, Metric.TTFT) * each.ttft_ms
    times = (p.tpot_ms, each.tpot_ms, tpot, p.ttft_ms, each.ttft_ms, ttft)
    shape = (p.id, p.model, p.system, p.backend, p.precision, p.tp, p.isl, p.osl, p.concurrency)
    return [*shape, each.profile, round(each.running, 1), *(round(ms, 3) for ms in times)]


def plot_points(
    path: Path, predictions: Sequence[Prediction], metric: Metric, factors: Factors
) -> None:
    """Corrected predictions against measurements, a panel for each system and engine."""
    from matplotlib.figure import Figure

    groups = sorted({each.group for each in predictions})
    columns = min(4, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(3.4 * columns, 3.3 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, group in zip(axes, groups, strict=False):
        members = [each for each in predictions if each.group == group]
        _panel(panel, members, metric, factor(factors, group, metric))
        panel.set_title(" ".join(group), fontsize=9)
    for unused in axes[len(groups) :]:
        unused.set_visible(False)
    figure.suptitle(
        f"{metric.value.upper()} of whole servers, ms: predicted (one factor a panel) "
        "against measured; dashed: 10 %",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)


def _panel(panel: object, members: Sequence[Prediction], metric: Metric, scale: float) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    assert isinstance(panel, Axes)
    ends = []
    for model in sorted({each.point.model for each in members}):
        of = [each for each in members if each.point.model == model]
        measured = np.array([getattr(each.point, f"{metric.value}_ms") for each in of])
        predicted = scale * np.array([getattr(each, f"{metric.value}_ms") for each in of])
        panel.scatter(measured, predicted, s=10, alpha=0.6, label=model)
        ends += [measured.min(), measured.max(), predicted.min(), predicted.max()]
    line = np.array([min(ends), max(ends)])
    panel.plot(line, line, color="black", linewidth=0.8)
    for off in (0.9, 1.1):
        panel.plot(line, off * line, color="black", linewidth=0.5, linestyle="--")
    panel.set_xscale("log")
    panel.set_yscale("log")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    panel.tick_params(labelsize=7)
    panel.legend(fontsize=7)
