# SPDX-License-Identifier: Apache-2.0
"""A replayable `Trace` as a `Workload`, and back: the live load client speaks the former.

Owns: what a trace's ids and sessions mean in rows. Does not own: either value.
"""

from __future__ import annotations

import numpy as np

from controller.simulation.trace_shaping import with_prompts
from controller.simulation.traces import (
    BLOCK_TOKENS,
    Trace,
    TraceError,
    TraceRequest,
    arrival_s,
)
from controller.simulation.workloads.rows import Heads, conversations, numbered
from controller.simulation.workloads.workload import Workload


def from_trace(trace: Trace) -> Workload:
    """Every session a stream. Ids of later rounds are dropped: after a private answer no other
    prompt can share them. TraceError when the trace is empty.
    """
    if not trace.sessions:
        raise TraceError(f"{trace.name}: no request")
    requests = list(trace.requests())
    ids = [session[0].block_ids for session in trace.sessions]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in ids])]).astype(np.int64)
    flat = np.array([block for each in ids for block in each], dtype=np.int64)
    return conversations(
        trace.name,
        np.array([arrival_s(session) for session in trace.sessions], dtype=np.float64),
        np.array([len(session) for session in trace.sessions], dtype=np.int64),
        np.array([request.new_tokens for request in requests], dtype=np.int64),
        np.array([request.output_tokens for request in requests], dtype=np.int64),
        np.array([request.think_s for request in requests], dtype=np.float64),
        heads=Heads(BLOCK_TOKENS, numbered(flat), starts),
    )


def to_trace(workload: Workload) -> Trace:
    """The same requests for the live load client; priorities and tenants have no place there.

    TraceError for what a trace cannot say: a closed loop, or shared blocks of other than 512
    tokens.
    """
    w = workload
    if (w.after != w.continues).any():
        raise TraceError(f"{w.name}: a trace has no closed loop; replay it in the simulator")
    if len(w.block_ids) and w.block_tokens != BLOCK_TOKENS:
        raise TraceError(f"{w.name}: shared blocks of {w.block_tokens} tokens, a trace has 512")
    new_tokens = w.new_tokens.tolist()
    by_head: dict[int, list[TraceRequest]] = {}
    for row, head in enumerate(w.heads.tolist()):
        rounds = by_head.setdefault(head, [])
        rounds.append(_request(w, row, len(rounds), new_tokens[row]))
    return Trace(w.name, tuple(with_prompts(rounds) for rounds in by_head.values()))


def _request(w: Workload, row: int, turn: int, new_tokens: int) -> TraceRequest:
    return TraceRequest(
        arrival_s=None if turn else float(w.arrival_s[row]),
        session_id=f"s{int(w.stream[row])}",
        round=turn,
        think_s=float(w.think_s[row]),
        prompt_tokens=int(w.prompt_tokens[row]),
        new_tokens=new_tokens,
        output_tokens=int(w.output_tokens[row]),
        block_ids=tuple(w.block_ids[w.block_starts[row] : w.block_starts[row + 1]].tolist()),
        line=row + 1,
    )
