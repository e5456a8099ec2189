# SPDX-License-Identifier: Apache-2.0
"""The alpha-beta cost of one engine step and of a KV transfer.

One engine step that computes `chunk` prompt tokens on top of `history` cached ones beside
`batch` running decodes holding `context` KV tokens takes

    base + per_sequence*batch + per_context*context
         + per_token*chunk + per_pair*chunk*(history + chunk/2)

(papers: AMPD arXiv 2602.14516 section 2 for the alpha-beta form; Kairos arXiv 2607.02043
section 4 for the joint step). The base is paid once a step, also by a pure prefill step. A
KV transfer is Hockney's `latency + bytes/bandwidth`. All results are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class CostModel(Protocol):
    """What placement, the engine law and the planner need to know about time (seconds)."""

    def step_s(self, batch: int, context: int, chunk: int, chunk_pairs: float) -> float:
        """One engine step. `chunk_pairs` is the sum of chunk*(history + chunk/2)."""
        ...

    def prefill_s(self, history: int, increment: int) -> float:
        """A whole prefill of `increment` tokens on top of `history`, alone on a worker."""
        ...

    def kv_transfer_s(self, tokens: int) -> float:
        """Moving the KV of `tokens` tokens between two workers; 0 for 0 tokens."""
        ...


@dataclass(frozen=True, slots=True)
class AlphaBetaCost:
    """`CostModel` with one linear piece. Coefficients are seconds, tokens and bytes.

    `max_chunk_tokens` splits long prefills into steps, each paying the base once more.
    """

    base_s: float
    per_sequence_s: float
    per_context_token_s: float
    per_prefill_token_s: float
    per_prefill_pair_s: float
    max_chunk_tokens: int
    kv_latency_s: float
    kv_bytes_per_token: int
    kv_bandwidth_bytes_s: float

    def step_s(self, batch: int, context: int, chunk: int, chunk_pairs: float) -> float:
        return (
            self.base_s
            + self.per_sequence_s * batch
            + self.per_context_token_s * context
            + self.per_prefill_token_s * chunk
            + self.per_prefill_pair_s * chunk_pairs
        )

    def prefill_s(self, history: int, increment: int) -> float:
        if increment <= 0:
            return 0.0
        steps = math.ceil(increment / self.max_chunk_tokens)
        pairs = increment * (history + increment / 2)
        return (
            steps * self.base_s
            + self.per_prefill_token_s * increment
            + self.per_prefill_pair_s * pairs
        )

    def decode_step_s(self, batch: int, context: int) -> float:
        """One decode step of `batch` sequences holding `context` KV tokens in all."""
        return self.step_s(batch, context, 0, 0.0)

    def kv_transfer_s(self, tokens: int) -> float:
        if tokens <= 0:
            return 0.0
        return self.kv_latency_s + tokens * self.kv_bytes_per_token / self.kv_bandwidth_bytes_s
