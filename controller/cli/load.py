# SPDX-License-Identifier: Apache-2.0
"""`equilibrium load`: arguments in, progress and a table out."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from controller.errors import UserError
from controller.runtime import load
from controller.simulation.trace_formats import FORMATS
from controller.simulation.trace_shaping import Shaping, shape_trace
from controller.simulation.traces import Trace, clock_bin_s, trace_stats
from controller.types import Slo, Spread

HELP = "replay a trace against an OpenAI endpoint and report SLO attainment"

_LINE_EVERY_S = 5.0
_PIPED_WIDTH = 120
_EXIT_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Replay a trace in open loop against an OpenAI-compatible server and report TTFT, ITL and "
        "SLO attainment. All times are emulated: wall clock divided by --time-scale. Exit codes: "
        "0 every request was served, 1 some were not, 2 something to fix, 130 interrupted."
    )
    add = parser.add_argument
    add("--trace", required=True, metavar="FILE", help="Mooncake JSONL or Azure CSV")
    add("--url", required=True, help="address of the server, http://HOST:PORT")
    add("--model", metavar="NAME", help="default: the first of GET /v1/models")
    add("--slo-ttft-ms", type=float, default=1000.0, metavar="MS", help="default: %(default)g")
    add("--slo-itl-ms", type=float, default=50.0, metavar="MS", help="default: %(default)g")
    _configure_trace(parser.add_argument_group("trace"))
    _configure_requests(parser.add_argument_group("requests"))
    _configure_output(parser.add_argument_group("output"))


def _configure_trace(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--format", choices=FORMATS, help="default: by extension, else by content")
    add("--rate-scale", type=float, default=1.0, metavar="X", help="X times as many sessions a s")
    add("--prompt-scale", type=float, default=1.0, metavar="X", help="multiply new prompt tokens")
    add("--output-scale", type=float, default=1.0, metavar="X", help="multiply output tokens")
    add("--max-prompt", type=int, metavar="TOKENS", help="end sessions before a longer prompt")
    add("--duration", type=float, metavar="S", help="only sessions that arrive before S")
    add("--limit", type=int, metavar="N", help="only the first N requests")
    add(
        "--spread-bins",
        action="store_true",
        help="spread arrivals inside the bins of a quantised trace clock",
    )
    add(
        "--phase",
        action="append",
        default=[],
        metavar="NAME=START:END",
        help="label sessions by arrival in trace seconds after scaling (repeatable)",
    )


def _configure_requests(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--endpoint", choices=[each.value for each in load.Endpoint], default="chat")
    add(
        "--seed",
        type=int,
        default=0,
        help="of prompts and --spread-bins; a new seed avoids a server's warm prefix cache",
    )
    add(
        "--chars-per-token",
        type=float,
        default=1.0,
        metavar="X",
        help="text that makes a token: 1 for the byte-level tiny model, about 4 for usual "
        "tokenizers; a chat template adds its own few tokens (default: %(default)g)",
    )
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for exactly the trace's output length",
    )
    add("--plain", action="store_true", help="send standard OpenAI fields only")
    add(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="further request header (repeatable)",
    )
    add("--time-scale", type=float, default=1.0, metavar="K", help="wall s per emulated s")
    add("--timeout", type=float, default=600.0, metavar="S", help="of a request (%(default)g)")
    add("--time-limit", type=float, metavar="S", help="end the run after S emulated seconds")


def _configure_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--out", metavar="FILE", help="rows, one per intended request: .csv or .parquet")
    add("--summary-json", metavar="FILE", help="the summary, .json")
    add("--force", action="store_true", help="overwrite output files")
    add("--quiet", action="store_true", help="no progress, only the result")


def run(args: argparse.Namespace) -> int:
    """Replay, print the table, write the files."""
    options = _options(args)
    if args.out:
        load.check_output(args.out, load.ROW_SUFFIXES, force=args.force)
    if args.summary_json:
        load.check_output(args.summary_json, (".json",), force=args.force)
    trace = load.read_trace(args.trace, args.format)
    shaped = shape_trace(trace, _shaping(args))
    notes = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    if not args.quiet:
        _print_trace(notes, trace, shaped, args)
    with _Reporter(notes, quiet=args.quiet) as reporter:
        result = load.run_until_signal(options, shaped, reporter.show)
    summary = load.summarize(result.rows, options.slo)
    # Checked before the run: what has appeared since must not cost the run's results.
    if args.out:
        load.write_rows(result.rows, args.out, force=True)
    if args.summary_json:
        load.write_summary(summary, args.summary_json, force=True)
    _print_summary(summary, result)
    if result.interrupted:
        return _EXIT_INTERRUPTED
    return 0 if load.served_all(summary) else 1


def _options(args: argparse.Namespace) -> load.LoadOptions:
    return load.LoadOptions(
        url=args.url,
        slo=Slo(ttft_ms=args.slo_ttft_ms, itl_ms=args.slo_itl_ms),
        model=args.model,
        endpoint=load.Endpoint(args.endpoint),
        seed=args.seed,
        chars_per_token=args.chars_per_token,
        ignore_eos=args.ignore_eos,
        plain=args.plain,
        time_scale=args.time_scale,
        timeout_s=args.timeout,
        time_limit_s=args.time_limit,
        phases=tuple(load.parse_phase(text) for text in args.phase),
        headers=tuple(_header(text) for text in args.header),
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UserError(f"--header {text!r}: give 'NAME: VALUE'")
    return name.strip(), value.strip()


def _shaping(args: argparse.Namespace) -> Shaping:
    return Shaping(
        rate=args.rate_scale,
        prompt_scale=args.prompt_scale,
        output_scale=args.output_scale,
        max_prompt=args.max_prompt,
        duration_s=args.duration,
        limit=args.limit,
        spread_bins=args.spread_bins,
        seed=args.seed,
    )


# --- printing ---------------------------------------------------------------------------------


def _print_trace(notes: Console, trace: Trace, shaped: Trace, args: argparse.Namespace) -> None:
    stats = trace_stats(shaped)
    rate = "-" if stats.prompt_tokens_per_s is None else f"{stats.prompt_tokens_per_s:,.0f}"
    notes.print(
        f"{trace.name}: {stats.requests:,} requests in {stats.sessions:,} sessions over "
        f"{stats.span_s:.1f} s, mean prompt {stats.prompt_tokens_mean:,.0f} and output "
        f"{stats.output_tokens_mean:,.0f} tokens, {rate} prompt tokens/s"
    )
    width = clock_bin_s(trace)
    if width is not None:
        how = "spread inside them" if args.spread_bins else "replayed as batches (--spread-bins)"
        notes.print(
            f"note: the trace's clock is rounded to bins of {width:g} s; arrivals are {how}"
        )


class _Reporter:
    """A bar on a terminal, a line every few seconds elsewhere, nothing when quiet."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._next_line = 0.0
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("load", total=None, state="")

    def __enter__(self) -> _Reporter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: load.Progress) -> None:
        """Called a few times a second while the run lasts."""
        state = (
            f"{progress.elapsed_s:.0f} s, {progress.running} running, {progress.failed} failed, "
            f"{progress.sent} sent"
        )
        if self._console.is_terminal:
            self._bar.update(
                self._task, completed=progress.done, total=progress.intended, state=state
            )
        elif not self._quiet and (progress.finished or time.monotonic() >= self._next_line):
            self._next_line = time.monotonic() + _LINE_EVERY_S
            self._console.print(f"{progress.done}/{progress.intended} done, {state}")
            sys.stderr.flush()


_Cell = Callable[[load.GroupSummary], str]


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "-"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"
    return f"{text}{unit}"


def _spread(spread: Spread) -> str:
    return "/".join(_number(each) for each in (spread.p50, spread.p95, spread.p99))


def _parts(group: load.GroupSummary) -> str:
    parts = (group.prefill_wait_ms, group.prefill_ms, group.handover_ms)
    return "+".join(_number(part.mean) for part in parts)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


_LINES: tuple[tuple[str, _Cell], ...] = (
    ("intended requests", lambda g: f"{g.intended:,}"),
    ("  finished", lambda g: f"{g.ok:,}"),
    ("  failed", lambda g: f"{g.failed:,}"),
    ("  unfinished", lambda g: f"{g.unfinished:,}"),
    ("  never sent", lambda g: f"{g.never_sent:,}"),
    ("SLO attainment", lambda g: _percent(g.attainment)),
    ("sessions wholly attained", lambda g: f"{g.sessions_attained:,} of {g.sessions:,}"),
    ("goodput, attained/s", lambda g: "-" if g.goodput_per_s is None else f"{g.goodput_per_s:.2f}"),
    ("output tokens/s", lambda g: _number(g.output_tokens_per_s)),
    ("TTFT mean, ms", lambda g: _number(g.ttft_ms.mean)),
    ("  = wait+prefill+hand-over", _parts),
    ("TTFT p50/p95/p99, ms", lambda g: _spread(g.ttft_ms)),
    ("TTFT longest, ms", lambda g: _number(g.ttft_ms.max)),
    ("ITL p50/p95/p99, ms", lambda g: _spread(g.itl_ms)),
    ("p99 gap p50/p95/p99, ms", lambda g: _spread(g.tbt_p99_ms)),
    ("longest gap, ms", lambda g: _number(g.tbt_max_ms)),
    ("sent late p99, ms", lambda g: _number(g.send_delay_ms.p99)),
)


def _print_summary(summary: load.Summary, result: load.LoadResult) -> None:
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_PIPED_WIDTH)
    named = summary.phases if len(summary.phases) > 1 else ()
    groups = (*named, summary.total)
    title = (
        f"{result.model}, {result.duration_s:.1f} s, SLO: TTFT {summary.slo.ttft_ms:g} ms, "
        f"ITL {summary.slo.itl_ms:g} ms"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for group in groups:
        table.add_column(group.name, justify="right", overflow="fold")
    for label, cell in _LINES:
        table.add_row(label, *(cell(group) for group in groups))
    console.print(table)
    console.print(
        "Times are over finished requests only. Attainment and goodput are over intended requests: "
        "failed, unfinished and never-sent ones are misses. ITL and p99 gap are each request's own."
    )
    for text, count in summary.errors[:3]:
        console.print(f"failed {count:,} times: {text}")
    if result.time_limit_reached:
        console.print("The time limit ended the run.")
    if result.interrupted:
        console.print("Interrupted: what had not ended counts as unfinished or never sent.")
