# SPDX-License-Identifier: Apache-2.0
"""Trace files as text: Mooncake JSONL, Azure CSV, Frontier CSV.

Owns: parsing with one-line errors (file, line, what is wrong, what to do) and writing JSONL.
Does not own: opening files; what the values mean (../traces, ../workloads).

A request that is too long for some server is no error here: a server would reject it, so it stays
in and the simulator counts it.
"""

from controller.simulation.trace_formats.parse import FORMATS, dump_trace, parse_trace

__all__ = ["FORMATS", "dump_trace", "parse_trace"]
