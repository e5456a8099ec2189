# SPDX-License-Identifier: Apache-2.0
"""The load client: replays a trace against an OpenAI endpoint, one row per intended request.

Owns: prompts, the open-loop run, streams, rows, the summary and their files.
Does not own: traces and their scaling (controller/simulation), tables (controller/cli).
"""

from controller.runtime.files import check_output
from controller.runtime.load.files import (
    ROW_SUFFIXES,
    read_trace,
    rows_to_frame,
    write_rows,
    write_summary,
)
from controller.runtime.load.options import Endpoint, LoadOptions, Phase, Progress, parse_phase
from controller.runtime.load.rows import RequestRow, Status
from controller.runtime.load.run import LoadResult, run_load, run_until_signal
from controller.runtime.load.summary import (
    GroupSummary,
    Summary,
    served_all,
    summarize,
    summary_to_dict,
)

__all__ = [
    "ROW_SUFFIXES",
    "Endpoint",
    "GroupSummary",
    "LoadOptions",
    "LoadResult",
    "Phase",
    "Progress",
    "RequestRow",
    "Status",
    "Summary",
    "check_output",
    "parse_phase",
    "read_trace",
    "rows_to_frame",
    "run_load",
    "run_until_signal",
    "served_all",
    "summarize",
    "summary_to_dict",
    "write_rows",
    "write_summary",
]
