# SPDX-License-Identifier: Apache-2.0
"""Building blocks of a `Workload`: single requests, conversations, prompts that share a head.

Owns: the columns that follow from others (histories, numbers of sessions, predecessors).
Does not own: the laws that the given columns are drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.simulation.traces import BLOCK_TOKENS
from controller.simulation.workloads.workload import Workload, validate
from controller.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Ids of the prompt blocks that requests may share, as in `Workload`."""

    tokens: int
    ids: IntArray
    starts: IntArray


def no_heads(count: int) -> Heads:
    """Nobody shares anything: shapes (0,) and (count + 1,)."""
    return Heads(BLOCK_TOKENS, np.zeros(0, np.int64), np.zeros(count + 1, np.int64))


def template_heads(template: IntArray, tokens: IntArray, block_tokens: int) -> Heads:
    """Prompts that begin with `tokens[t]` tokens of their template.

    `template` has shape (n,), -1 for a prompt of its own; `tokens` has shape (templates,). Only
    full blocks get ids: a started one goes on differently in each prompt.
    """
    blocks = tokens // block_tokens
    first = np.cumsum(blocks) - blocks
    counts = np.where(template >= 0, blocks[template], 0)
    starts = np.concatenate([[0], np.cumsum(counts)])
    ids = _spans(first[template], counts)
    # Templates that nobody drew leave gaps in the numbers.
    used = np.bincount(ids, minlength=int(blocks.sum())) > 0
    return Heads(block_tokens, (np.cumsum(used) - 1)[ids], starts)


def numbered(values: IntArray) -> IntArray:
    """The same identities numbered from 0 without gaps, in order of their value."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def single_rounds(
    name: str,
    arrival_s: FloatArray,
    prompt_tokens: IntArray,
    output_tokens: IntArray,
    *,
    tenant: IntArray | None = None,
    heads: Heads | None = None,
) -> Workload:
    """Requests that have nothing to do with one another; columns of shape (n,), any order."""
    count = len(arrival_s)
    return conversations(
        name,
        arrival_s,
        np.ones(count, np.int64),
        prompt_tokens,
        output_tokens,
        np.zeros(count),
        tenant=tenant,
        heads=heads,
    )


def conversations(
    name: str,
    arrival_s: FloatArray,
    rounds: IntArray,
    new_tokens: IntArray,
    output_tokens: IntArray,
    think_s: FloatArray,
    *,
    tenant: IntArray | None = None,
    heads: Heads | None = None,
) -> Workload:
    """Sessions whose rounds each add `new_tokens` to all that was said before.

    `arrival_s`, `rounds` and `tenant` have shape (sessions,) and any order; the other columns have
    shape (sum of rounds,), session after session; `heads` names the blocks of first rounds, shape
    (sessions + 1,). `think_s` of a first round is ignored.
    """
    order = np.argsort(arrival_s, kind="stable")
    first = np.cumsum(rounds) - rounds
    source = _spans(first[order], rounds[order])
    rounds = rounds[order]
    session = np.repeat(np.arange(len(rounds)), rounds)
    turn = _spans(np.zeros(len(rounds), np.int64), rounds)
    begins = turn == 0
    new, output = new_tokens[source], output_tokens[source]
    said = np.cumsum(new + output)
    before = np.repeat((said - new - output)[begins], rounds)
    shared = _reordered(heads or no_heads(len(rounds)), order)
    ids = np.zeros(len(session), np.int64)
    ids[begins] = np.diff(shared.starts)
    return validate(
        Workload(
            name=name,
            arrival_s=np.where(begins, np.repeat(arrival_s[order], rounds), np.nan),
            think_s=np.where(begins, 0.0, think_s[source]),
            prompt_tokens=said - output - before,
            output_tokens=output,
            session=session,
            round=turn,
            stream=session.copy(),
            after=np.where(begins, -1, np.arange(len(session)) - 1),
            priority=np.zeros(len(session), np.int64),
            tenant=_per_session(tenant, order, rounds),
            block_tokens=shared.tokens,
            block_ids=shared.ids,
            block_starts=np.concatenate([[0], np.cumsum(ids)]),
        )
    )


def _per_session(column: IntArray | None, order: IntArray, rounds: IntArray) -> IntArray:
    if column is None:
        return np.zeros(int(rounds.sum()), np.int64)
    return np.repeat(column[order], rounds)


def _spans(first: IntArray, counts: IntArray) -> IntArray:
    """first[0], first[0] + 1, ... (counts[0] of them), first[1], ..."""
    skipped = np.cumsum(counts) - counts
    spans: IntArray = np.arange(int(counts.sum())) - np.repeat(skipped - first, counts)
    return spans


def _reordered(heads: Heads, order: IntArray) -> Heads:
    counts = np.diff(heads.starts)
    source = _spans(heads.starts[:-1][order], counts[order])
    starts = np.concatenate([[0], np.cumsum(counts[order])])
    return Heads(heads.tokens, heads.ids[source], starts)
