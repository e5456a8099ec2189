# SPDX-License-Identifier: Apache-2.0
"""Times of whole engine steps from times of operators, over the grid that profiles are fitted on.

Pure. Owns: how operators add up to a step, the grid of steps, and its rows as measurements. Does
not own: where operator times come from (aiconfigurator_tables), the fit (controller.costs.fit).

The tables hold prefill attention without prior context only. A chunk of x tokens on k tokens of
context is taken as attention(k + x) - attention(k), but not below attention(x). Where this can be
checked against measurements of chunks on context it errs by -21 to +11 %, mostly too low.
Decodes and prompt tokens of one step share the work that depends on tokens only; their
attentions add up (measured mixed attention is 11 to 48 % above the sum in the cases known).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from controller.costs.measurements import StepMeasurements, measurements

BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
HISTORIES = (0, 256, 512, 1024, 2048, 4096, 8192, 12288)
MIXED_BATCHES = (4, 32, 128, 256)
MIXED_CONTEXTS = (512, 2048, 8192)
MIXED_CHUNKS = (64, 256, 512, 1024, 2048, 4096)
MIXED_HISTORIES = (0, 4096)
LONGEST = 16384
"""Tokens of the longest prompt that the tables hold."""


Sizes = tuple[int, ...]


class Operators(Protocol):
    """Operator times in seconds of one model on one worker, over all layers."""

    def dense_s(self, tokens: int) -> float:
        """Work that depends on the tokens of a step only."""
        ...

    def head_s(self, sequences: int) -> float:
        """Work that is done once for every sequence of a step."""
        ...

    def decode_attention_s(self, batch: int, context: int) -> float:
        """`batch` decodes of `context` tokens each."""
        ...

    def prefill_attention_s(self, tokens: int) -> float:
        """One prompt of `tokens` tokens without prior context."""
        ...


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step: `batch` decodes of `context` tokens each, a chunk on `history` tokens."""

    batch: int
    context: int
    chunk: int
    history: int


def chunk_attention_s(operators: Operators, chunk: int, history: int) -> float:
    """Attention of a chunk on prior context, by the difference above."""
    alone = operators.prefill_attention_s(chunk)
    if history == 0:
        return alone
    whole = operators.prefill_attention_s(history + chunk)
    return max(alone, whole - operators.prefill_attention_s(history))


def step_s(operators: Operators, step: StepShape) -> float:
    """One step; a chunk adds one sequence to the head's work."""
    sequences = step.batch + (1 if step.chunk else 0)
    total = operators.dense_s(step.batch + step.chunk) + operators.head_s(sequences)
    if step.batch:
        total += operators.decode_attention_s(step.batch, step.context)
    if step.chunk:
        total += chunk_attention_s(operators, step.chunk, step.history)
    return total


def grid(kv_tokens: float) -> Iterator[StepShape]:
    """Every step of the grid whose context fits into `kv_tokens` tokens of KV cache."""
    yield from _pure(kv_tokens, BATCHES, CONTEXTS, CHUNKS, HISTORIES)
    yield from _mixed(kv_tokens, MIXED_BATCHES, MIXED_CONTEXTS, MIXED_CHUNKS, MIXED_HISTORIES)


def between_grid(kv_tokens: float) -> Iterator[StepShape]:
    """Steps whose batch, context, chunk and history all lie between points of the grid."""
    batches, contexts = (3, 6, 12, 24, 48, 80, 160, 320, 448), (192, 768, 1536, 3072, 6144, 10240)
    chunks, histories = (24, 96, 192, 384, 768, 1280, 2560, 5120, 7168), (0, 768, 3072, 6144)
    yield from _pure(kv_tokens, batches, contexts, chunks, histories)
    yield from _mixed(kv_tokens, (6, 48, 160), (768, 3072), (96, 384, 1280, 2560), (0, 3072))


def _pure(
    kv_tokens: float, batches: Sizes, contexts: Sizes, chunks: Sizes, histories: Sizes
) -> Iterator[StepShape]:
    for batch in batches:
        for context in contexts:
            if batch * context <= kv_tokens or context == contexts[0]:
                yield StepShape(batch, context, 0, 0)
    for chunk in chunks:
        for history in histories:
            if history + chunk <= LONGEST:
                yield StepShape(0, 0, chunk, history)


def _mixed(
    kv_tokens: float, batches: Sizes, contexts: Sizes, chunks: Sizes, histories: Sizes
) -> Iterator[StepShape]:
    for batch in batches:
        for context in contexts:
            if batch * context <= kv_tokens:
                for chunk in chunks:
                    for history in histories:
                        yield StepShape(batch, context, chunk, history)


def as_measurements(steps: list[StepShape], times_s: list[float]) -> StepMeasurements:
    """Steps with their times as the fit takes them."""
    batch = np.array([step.batch for step in steps])
    return measurements(
        batch,
        batch * np.array([step.context for step in steps]),
        [step.chunk for step in steps],
        [step.history for step in steps],
        times_s,
    )
