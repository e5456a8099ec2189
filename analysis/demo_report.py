# SPDX-License-Identifier: Apache-2.0
"""The demo's table, picture and summary.json, from the scenarios' results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from controller.config import DeploymentConfig
from controller.runtime.demo.compare import ScenarioResult
from controller.runtime.load import GroupSummary, rows_to_frame, summary_to_dict, write_rows

SCHEMA = "equilibrium.demo/1"
# Okabe-Ito: told apart by colour-blind readers, and in print by line style.
_STYLES = {
    "stock": ("#000000", ":"),
    "always_remote": ("#E69F00", "--"),
    "ampd": ("#0072B2", "-"),
}


def write_report(
    results: Sequence[ScenarioResult], config: DeploymentConfig, trace: str, out: Path
) -> None:
    """Raw rows (Parquet), summary.json and demo.png into `out`."""
    for result in results:
        write_rows(result.load.rows, out / f"{result.scenario.name}.parquet", force=True)
    summary = {
        "schema": SCHEMA,
        "trace": trace,
        "slo": {"ttft_ms": config.slo.ttft_ms, "itl_ms": config.slo.itl_ms},
        "time_scale": config.time_scale,
        "scenarios": {result.scenario.name: _scenario_dict(result) for result in results},
    }
    text = json.dumps(summary, indent=2, allow_nan=False)
    (out / "summary.json").write_text(text + "\n", encoding="utf-8")
    draw(results, config, out / "demo.png")


def _scenario_dict(result: ScenarioResult) -> dict[str, Any]:
    return {
        "title": result.scenario.title,
        "rows": f"{result.scenario.name}.parquet",
        "run_dir": str(result.run_dir),
        "max_engine_lag_ms": result.max_lag_ms,
        "summary": summary_to_dict(result.summary),
        "phases": {
            name: {
                "local_share": local_share(result, name),
                "decisions": dict(reasons(result, name)),
            }
            for name in (group.name for group in result.summary.phases)
        },
    }


def reasons(result: ScenarioResult, phase: str) -> Counter[str]:
    """Decisions of a phase by `place: reason`."""
    phase_of = {row.response_id: row.phase for row in result.load.rows}
    return Counter(
        f"{decision['place']}: {decision['reason']}"
        for decision in result.decisions
        if phase_of.get(decision["request_id"]) == phase
    )


def local_share(result: ScenarioResult, phase: str) -> float | None:
    """Share of a phase's prefills that ran on decode workers; None without our router."""
    counts = reasons(result, phase)
    total = sum(counts.values())
    if not total:
        return None
    return sum(n for reason, n in counts.items() if reason.startswith("local")) / total


def print_report(results: Sequence[ScenarioResult], config: DeploymentConfig, out: Path) -> None:
    """The table, the decisions, and where the files are."""
    console = Console()
    slo = f"TTFT <= {config.slo.ttft_ms:g} ms and mean ITL <= {config.slo.itl_ms:g} ms"
    table = Table(title=f"SLO: {slo}", title_justify="left", padding=(0, 0))
    for column in ("phase", "deployment"):
        table.add_column(column)
    for column in ("served", "SLO attained", "P95 TTFT", "P95 ITL", "P95 TBT p99", "local"):
        table.add_column(column, justify="right")
    for index in range(len(results[0].summary.phases)):
        for result in results:
            table.add_row(*_cells(result, result.summary.phases[index]))
        table.add_section()
    console.print(table)
    for result in results:
        for group in result.summary.phases:
            counts = reasons(result, group.name)
            if counts:
                listed = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
                console.print(f"decisions, {result.scenario.name}, {group.name}: {listed}")
    lag = max((r.max_lag_ms for r in results if r.max_lag_ms is not None), default=None)
    if lag is not None:
        console.print(f"emulated engines woke up at most {lag:.0f} ms late")
    console.print(f"picture {out / 'demo.png'}, figures {out / 'summary.json'}, rows *.parquet")


def _cells(result: ScenarioResult, group: GroupSummary) -> tuple[str, ...]:
    share = local_share(result, group.name)
    return (
        group.name,
        result.scenario.title,
        f"{group.ok}/{group.intended}",
        _number(group.attainment, 100, " %"),
        _number(group.ttft_ms.p95, 1e-3, " s", 2),
        _number(group.itl_ms.p95, 1, " ms", 1),
        _number(group.tbt_p99_ms.p95, 1, " ms", 0),
        _number(share, 100, " %"),
    )


def _number(value: float | None, factor: float, unit: str, digits: int = 1) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}{unit}"


def draw(results: Sequence[ScenarioResult], config: DeploymentConfig, path: Path) -> None:
    """TTFT over arrival time, ITL distribution, and attainment by phase."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(1.3, 1))
    over_time = figure.add_subplot(grid[0, :])
    itl = figure.add_subplot(grid[1, 0])
    attained = figure.add_subplot(grid[1, 1])
    for result in results:
        frame = rows_to_frame(result.load.rows).query("status == 'ok'").sort_values("scheduled_s")
        colour, style = _STYLES[result.scenario.name]
        label = result.scenario.title
        smooth = frame["ttft_ms"].rolling(9, min_periods=1, center=True).median() / 1e3
        over_time.plot(frame["scheduled_s"], smooth, color=colour, linestyle=style, label=label)
        over_time.plot(frame["scheduled_s"], frame["ttft_ms"] / 1e3, ".", color=colour, ms=2)
        values = frame["itl_mean_ms"].dropna().sort_values()
        share = [100 * (i + 1) / len(values) for i in range(len(values))]
        itl.plot(values, share, color=colour, linestyle=style, label=label)
    burst = next((g for g in results[0].load.rows if g.phase == "burst"), None)
    if burst is not None and burst.scheduled_s is not None:
        over_time.axvline(burst.scheduled_s, color="0.6", lw=0.8)
        over_time.annotate(
            "burst", (burst.scheduled_s, 0), xytext=(4, 4), textcoords="offset points", color="0.4"
        )
    over_time.axhline(config.slo.ttft_ms / 1e3, color="#D55E00", lw=0.8, label="TTFT limit")
    over_time.set(xlabel="arrival, s", ylabel="TTFT, s (median of 9)", yscale="log")
    over_time.yaxis.set_major_formatter("{x:g}")
    over_time.legend(fontsize="small", loc="upper left")
    itl.axvline(config.slo.itl_ms, color="#D55E00", lw=0.8, label="ITL limit")
    itl.set(xlabel="mean ITL of a request, ms", ylabel="requests at or below, %")
    _bars(attained, results)
    figure.savefig(path, dpi=130)


def _bars(axes: Any, results: Sequence[ScenarioResult]) -> None:
    phases = [group.name for group in results[0].summary.phases]
    width = 0.8 / len(results)
    for index, result in enumerate(results):
        heights = [100 * (group.attainment or 0.0) for group in result.summary.phases]
        places = [i + (index - (len(results) - 1) / 2) * width for i in range(len(phases))]
        bars = axes.bar(places, heights, width * 0.92, color=_STYLES[result.scenario.name][0])
        axes.bar_label(bars, fmt="%.0f", fontsize="small")
    axes.set(xticks=range(len(phases)), xticklabels=phases, ylim=(0, 108), ylabel="SLO attained, %")
