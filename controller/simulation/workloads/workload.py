# SPDX-License-Identifier: Apache-2.0
"""What a simulated cluster is asked to serve: one row a request, as parallel arrays.

Owns: the value, its invariants (`validate`), the identity of prompt blocks.
Does not own: how a workload is drawn or read (the other modules here), what a server does with it.

Everything is drawn before the run (evaluation rule 2): a request that follows another one carries
the pause after its predecessor, not a time, since only the run knows when that one finishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.simulation.traces import TraceError
from controller.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """`n` requests. Arrays have shape (n,) unless said otherwise; int64, and float64 for `_s`.

    **Order.** A predecessor stands before its follower; rows with a time of their own stand in
    order of that time. Sessions and streams are numbered below n.

    **Followers.** `after[i]` is the row whose end starts request i, -1 where it arrives by itself
    at `arrival_s[i]`. A follower arrives `think_s[i]` after its predecessor has finished. When the
    predecessor fails or is rejected, a follower of the same stream is never issued and counts as a
    miss (a conversation is broken); one of another stream arrives `think_s[i]` after the failure
    (a closed-loop client sends its next request).

    **Streams and blocks.** Requests of one stream are rounds of one growing text: each prompt
    begins with the predecessor's whole prompt and answer. The first round of a stream may have
    ids: `block_ids[block_starts[i] + j]` names block j of its prompt, `block_tokens` tokens (the
    last may be a part). Equal id means an equal prefix up to the end of that block. Whatever has
    no id, and every block that is not full within the first prompt, is private: its identity is
    (stream, position). Later rounds begin with the blocks of `heads`, so they need no ids.
    `engine_block_ids` writes all this out in an engine's own, smaller blocks.
    """

    name: str
    arrival_s: FloatArray
    """From the start of the run; NaN for a follower."""
    think_s: FloatArray
    """Pause after the predecessor; 0 for a request that arrives by itself."""
    prompt_tokens: IntArray
    """The whole prompt, history included."""
    output_tokens: IntArray
    """What the request will generate: unknown to every rule (evaluation rule 3)."""
    session: IntArray
    """Requests that one decode worker should serve (binding)."""
    round: IntArray
    """Number of the request within its session, from 0."""
    stream: IntArray
    """Whose text the prompt continues."""
    after: IntArray
    priority: IntArray
    """Larger is more urgent; 0 without priorities."""
    tenant: IntArray
    """Who pays, numbered from 0: reports go by it."""
    block_tokens: int
    block_ids: IntArray
    """(ids,) numbered from 0 without gaps, so that a flat array can be indexed by them."""
    block_starts: IntArray
    """(n + 1,) where each request's ids begin in `block_ids`."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def continues(self) -> IntArray:
        """(n,) the row whose text this prompt begins with (same stream), -1 for a first round."""
        follows = self.after >= 0
        before = np.where(follows, self.after, 0)
        return np.where(follows & (self.stream[before] == self.stream), self.after, -1)

    @property
    def heads(self) -> IntArray:
        """(n,) the first round of each request's stream: its ids are those of the prompt's head."""
        return chain_heads(self.continues)

    @property
    def history_tokens(self) -> IntArray:
        """(n,) tokens at the head of each prompt that the stream's earlier rounds have made."""
        before = self.continues
        made = self.prompt_tokens[before] + self.output_tokens[before]
        return np.where(before >= 0, made, 0)

    @property
    def new_tokens(self) -> IntArray:
        """(n,) prompt tokens that no earlier round of the stream has made."""
        new: IntArray = self.prompt_tokens - self.history_tokens
        return new

    @property
    def followers(self) -> IntArray:
        """(n,) the row that each request's end starts, -1 for none: the inverse of `after`."""
        then = np.full(len(self), -1, dtype=np.int64)
        rows = np.flatnonzero(self.after >= 0)
        then[self.after[rows]] = rows
        return then


def chain_heads(before: IntArray) -> IntArray:
    """(n,) where each chain of predecessors begins; `before[i]` is an earlier row or -1."""
    heads = np.where(before >= 0, before, np.arange(len(before)))
    while True:
        further = heads[heads]
        if np.array_equal(further, heads):
            return heads
        heads = further


def engine_block_ids(workload: Workload, row: int, block_tokens: int) -> IntArray:
    """Identities of the full engine blocks of one prompt, in order: (prompt // block_tokens,).

    Shared blocks are numbered from 0 upwards, private ones from -1 downwards by (stream,
    position): the two never meet. The blocks of a request's answer have the identities that the
    next round's prompt has there. TraceError when `block_tokens` does not divide the workload's
    own blocks. Meant for references and tests; a kernel computes the same on the fly.
    """
    w = workload
    per_id = _engine_blocks_per_id(w, block_tokens)
    position = np.arange(w.prompt_tokens[row] // block_tokens)
    head = int(w.heads[row])
    ids = w.block_ids[w.block_starts[head] : w.block_starts[head + 1]]
    known = min(len(ids) * per_id, int(w.prompt_tokens[head]) // block_tokens, len(position))
    shared, private = position[:known], position[known:]
    longest = int((w.prompt_tokens + w.output_tokens).max()) // block_tokens + 1
    return np.concatenate(
        [ids[shared // per_id] * per_id + shared % per_id, -1 - w.stream[row] * longest - private]
    )


def validate(workload: Workload) -> Workload:
    """The same workload, or TraceError: one line that names the first wrong row and its field."""
    w = workload
    _check_shapes(w)
    rows = np.arange(len(w))
    follows = w.after >= 0
    _refuse(w, (w.after < -1) | (follows & (w.after >= rows)), "after names no earlier row")
    followed = np.bincount(w.after[follows], minlength=len(w))
    continues = w.continues >= 0
    ids = np.diff(w.block_starts)
    numbers = np.stack([w.session, w.stream])
    for wrong, what in (
        (follows & (followed[w.after] > 1), "after names a row that another request follows"),
        (~follows & ~(np.isfinite(w.arrival_s) & (w.arrival_s >= 0)), "arrival_s is no time >= 0"),
        (follows & ~np.isnan(w.arrival_s), "arrival_s of a follower must be NaN"),
        (_backwards(w.arrival_s), "arrival_s is before the previous arrival: sort the rows"),
        (~(np.isfinite(w.think_s) & (w.think_s >= 0)), "think_s is no time >= 0"),
        (~follows & (w.think_s != 0), "think_s needs a predecessor"),
        (w.prompt_tokens < 1, "prompt_tokens is below 1"),
        (w.output_tokens < 1, "output_tokens is below 1"),
        ((w.round < 0) | (w.tenant < 0), "round or tenant is negative"),
        (((numbers < 0) | (numbers >= len(w))).any(axis=0), "session or stream is not in [0, n)"),
        (continues & (w.new_tokens < 1), "prompt_tokens does not exceed its stream's history"),
        (ids < 0, "block_starts decreases"),
        (ids > -(-w.prompt_tokens // w.block_tokens), "more block ids than the prompt has blocks"),
        (continues & (ids > 0), "a later round of a stream has block ids"),
    ):
        _refuse(w, wrong, what)
    _check_ids(w)
    return workload


def _refuse(w: Workload, wrong: Any, what: str) -> None:
    if wrong.any():
        raise TraceError(f"{w.name}: request {int(np.argmax(wrong))}: {what}")


def _backwards(arrival_s: FloatArray) -> NDArray[np.bool_]:
    back = np.zeros(len(arrival_s), dtype=bool)
    own = np.flatnonzero(~np.isnan(arrival_s))
    back[own[1:]] = np.diff(arrival_s[own]) < 0
    return back


def _check_ids(w: Workload) -> None:
    ids = w.block_ids
    if not len(ids):
        return
    if ids.min() < 0 or ids.max() >= len(ids) or not np.bincount(ids).all():
        raise TraceError(f"{w.name}: block_ids are not numbered from 0 without gaps")


def _check_shapes(w: Workload) -> None:
    if not len(w):
        raise TraceError(f"{w.name}: no request")
    for name in (
        "think_s",
        "prompt_tokens",
        "output_tokens",
        "session",
        "round",
        "stream",
        "after",
        "priority",
        "tenant",
    ):
        column = getattr(w, name)
        if column.shape != w.arrival_s.shape:
            raise TraceError(f"{w.name}: {name} has shape {column.shape}, not {w.arrival_s.shape}")
    if w.block_tokens < 1:
        raise TraceError(f"{w.name}: block_tokens is {w.block_tokens}: give 1 or more")
    starts = w.block_starts
    if starts.shape != (len(w) + 1,) or starts[0] != 0 or starts[-1] != len(w.block_ids):
        raise TraceError(f"{w.name}: block_starts does not span block_ids")


def _engine_blocks_per_id(w: Workload, block_tokens: int) -> int:
    per_id, rest = divmod(w.block_tokens, block_tokens)
    if len(w.block_ids) and (per_id < 1 or rest):
        raise TraceError(
            f"{w.name}: engine blocks of {block_tokens} tokens do not divide the workload's blocks "
            f"of {w.block_tokens}"
        )
    return per_id
