# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured step times: a scatter plot and the rows behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from controller.costs.errors_report import StepKind, ape, kinds
from controller.costs.measurements import StepMeasurements
from controller.errors import UserError
from controller.runtime.files import replace_file

# Okabe-Ito: told apart by colour-blind readers, and in print by shape.
_STYLES = {
    StepKind.PREFILL: ("#0072B2", "o"),
    StepKind.PREFILL_WITH_HISTORY: ("#56B4E9", "s"),
    StepKind.DECODE: ("#E69F00", "^"),
    StepKind.MIXED: ("#009E73", "D"),
}
_BAND = 0.1

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def write_validation(
    folder: Path, title: str, predicted_s: Floats, steps: StepMeasurements, outside: Mask
) -> tuple[Path, Path]:
    """validation.csv and validation.png in `folder`. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make the folder ({error.strerror})") from None
    rows, picture = folder / "validation.csv", folder / "validation.png"
    frame = rows_of(predicted_s, steps, outside)
    replace_file(rows, lambda target: frame.to_csv(target, index=False, float_format="%.6g"))
    replace_file(picture, lambda target: draw(title, predicted_s, steps, outside, target))
    return rows, picture


def rows_of(predicted_s: Floats, steps: StepMeasurements, outside: Mask) -> pd.DataFrame:
    """One row a step: what it computed, measured and predicted ms, error in per cent."""
    kind = np.full(len(steps), "", dtype=object)
    for each, mask in kinds(steps).items():
        kind[mask] = each.value
    frame: pd.DataFrame = pd.DataFrame(
        {
            "kind": kind,
            "batch": steps.batch,
            "context_tokens": steps.context,
            "prefill_tokens": steps.chunk,
            "prefill_pairs": steps.pairs,
            "measured_ms": 1e3 * steps.step_s,
            "predicted_ms": 1e3 * predicted_s,
            "error_pct": 100 * (predicted_s / steps.step_s - 1),
            "extrapolated": outside,
        }
    )
    return frame


def draw(
    title: str, predicted_s: Floats, steps: StepMeasurements, outside: Mask, path: str
) -> None:
    """Log-log scatter, the line of equality, a band of 10 %."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogFormatter, StrMethodFormatter

    figure, axes = plt.subplots(figsize=(7, 6.4), layout="constrained")
    measured, predicted = 1e3 * steps.step_s, 1e3 * predicted_s
    low = 0.8 * min(measured.min(), predicted.min())
    high = 1.25 * max(measured.max(), predicted.max())
    line = np.array([low, high])
    axes.plot(line, line, color="black", linewidth=1)
    axes.fill_between(line, line * (1 - _BAND), line * (1 + _BAND), color="0.9", label="±10 %")
    for kind, mask in kinds(steps).items():
        if not mask.any():
            continue
        colour, marker = _STYLES[kind]
        errors = ape(predicted_s[mask], steps.step_s[mask])
        label = f"{kind.value.replace('_', ' ')}: {errors.median_pct:.1f} % median"
        style: dict[str, Any] = {"s": 14, "marker": marker, "linewidths": 0.8}
        inside = mask & ~outside
        axes.scatter(measured[inside], predicted[inside], color=colour, label=label, **style)
        axes.scatter(
            measured[mask & outside],
            predicted[mask & outside],
            facecolors="none",
            edgecolors=colour,
            **style,
        )
    if outside.any():
        axes.scatter([], [], facecolors="none", edgecolors="black", label="hollow: extrapolated")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axes.set(xlabel="measured step, ms", ylabel="predicted step, ms")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=130, format="png")
    plt.close(figure)
