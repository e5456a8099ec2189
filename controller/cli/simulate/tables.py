# SPDX-License-Identifier: Apache-2.0
"""The tables that people read: one of single figures, one of distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from controller.cli.simulate.seeds import Interval, intervals
from controller.simulation.cluster import ClusterSpec, SimResult
from controller.simulation.config import SimulationConfig
from controller.simulation.report.summary import SimSummary

_PIPED_WIDTH = 120
_Format = Callable[[float], str]


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


_LINES: tuple[tuple[str, str, _Format], ...] = (
    ("requests", "requests", _count),
    ("  served", "served", _count),
    ("  rejected", "rejected", _count),
    ("  failed", "failed", _count),
    ("  unfinished", "unfinished", _count),
    ("  never issued", "never_issued", _count),
    ("SLO attainment, mean ITL", "attainment", _percent),
    ("SLO attainment, p99 gap", "attainment_p99_gap", _percent),
    ("  longest tenth of prompts", "attainment_longest_decile", _percent),
    ("sessions", "sessions", _count),
    ("  wholly attained", "sessions_attained", _count),
    ("span, s", "span_s", _rate),
    ("requests/s", "requests_per_s", _rate),
    ("goodput/s, mean ITL", "goodput_per_s", _rate),
    ("goodput/s, p99 gap", "goodput_p99_gap_per_s", _rate),
    ("prompt tokens/s", "prompt_tokens_per_s", _rate),
    ("output tokens/s", "output_tokens_per_s", _rate),
    ("longest wait, ms", "longest_wait_ms", _ms),
    ("local prefills", "local_share", _percent),
    ("prefix hit rate", "hit_rate", _percent),
    ("utilisation, prefill", "utilisation_prefill", _percent),
    ("utilisation, decode", "utilisation_decode", _percent),
    ("preemptions", "preemptions", _count),
)
_SPREADS = (
    ("TTFT", "ttft_ms"),
    ("  queue", "queue_ms"),
    ("  prefill", "prefill_ms"),
    ("  transfer", "transfer_ms"),
    ("  admission", "admission_ms"),
    ("ITL, mean a request", "itl_ms"),
    ("p99 gap a request", "gap_p99_ms"),
    ("longest gap a request", "gap_max_ms"),
    ("gaps, all tokens", "token_gap_ms"),
    ("latency", "latency_ms"),
)
_COLUMNS = ("mean", "p50", "p95", "p99", "max")


def print_tables(
    config: SimulationConfig,
    cluster: ClusterSpec,
    runs: Sequence[tuple[int, SimResult, SimSummary]],
) -> None:
    """Both tables, figures as mean and half-width when there are several seeds."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_PIPED_WIDTH)
    figures = intervals([summary for _, _, summary in runs])
    console.print(_title(config, cluster, runs), style="bold")
    console.print(_single(figures))
    console.print(_spreads(figures))
    console.print(_footer(config, len(runs)))


def _title(
    config: SimulationConfig,
    cluster: ClusterSpec,
    runs: Sequence[tuple[int, SimResult, SimSummary]],
) -> str:
    seeds = f"seed {runs[0][0]}" if len(runs) == 1 else f"seeds {runs[0][0]} to {runs[-1][0]}"
    return (
        f"{runs[0][1].workload.name} on {len(cluster.prefill)}P{len(cluster.decode)}D "
        f"({config.name}), {config.router.policy}, {seeds}; SLO: TTFT {config.slo.ttft_ms:g} ms, "
        f"ITL {config.slo.itl_ms:g} ms"
    )


def _single(figures: dict[str, Interval]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right")
    for label, name, text in _LINES:
        table.add_row(label, _cell(figures.get(name), text))
    for name, interval in figures.items():
        if name.startswith("reasons_"):
            reason = name.removeprefix("reasons_").replace("_", " ")
            table.add_row(f"placed: {reason}", _cell(interval, _count))
    return table


def _spreads(figures: dict[str, Interval]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("ms, of served requests", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for label, name in _SPREADS:
        cells = [_cell(figures.get(f"{name}_{column}"), _ms) for column in _COLUMNS]
        table.add_row(label, *cells)
    return table


def _cell(interval: Interval | None, text: _Format) -> str:
    if interval is None or interval[0] is None:
        return "-"
    half = "" if interval[1] is None else f" ± {text(interval[1])}"
    return f"{text(interval[0])}{half}"


def _footer(config: SimulationConfig, seeds: int) -> str:
    router = config.router
    known = "exact" if router.cost_error == 0 and router.cost_bias == 1 else "with error"
    late = f"{router.report_delay_s * 1e3:g} ms late" if router.report_delay_s else "at once"
    interval = f" ± is the half-width of a 95 % interval over {seeds} seeds." if seeds > 1 else ""
    return (
        "Attainment and goodput are over all requests: what was not served is a miss. The router "
        f"knew costs {known} and heard of workers {late}.{interval}"
    )
