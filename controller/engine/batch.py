# SPDX-License-Identifier: Apache-2.0
"""What one step computes and how long that takes.

Owns: the members of a step, its sums, its duration. Does not own: who gets in (scheduler.py).
"""

from __future__ import annotations

from controller.costs.model import CostModel
from controller.engine.sequence import Sequence
from controller.engine.values import Step


class Batch:
    """The step being composed, then running. `budget` is what is left to hand out (tokens).

    A decode takes `verified` tokens of it and gets `emitted` tokens out of the step.
    """

    __slots__ = (
        "budget",
        "decode_kv_tokens",
        "decodes",
        "emitted",
        "prefill_kv_tokens",
        "prefill_pairs",
        "prefill_tokens",
        "prefills",
        "verified",
    )

    def __init__(self, budget: int, verified: int, emitted: int) -> None:
        self.budget = budget
        self.verified = verified
        self.emitted = emitted
        self.decodes: list[Sequence] = []
        self.decode_kv_tokens = 0
        self.prefills: list[tuple[Sequence, int]] = []
        self.prefill_tokens = 0
        self.prefill_kv_tokens = 0
        self.prefill_pairs = 0.0

    def __bool__(self) -> bool:
        return bool(self.decodes or self.prefills)

    def add_decode(self, seq: Sequence) -> None:
        """The next tokens on top of all that the request holds."""
        self.budget -= self.verified
        self.decodes.append(seq)
        self.decode_kv_tokens += seq.computed

    def add_prefill(self, seq: Sequence, tokens: int) -> None:
        """A chunk of `tokens` on top of what is computed (the history)."""
        self.budget -= tokens
        seq.chunks_done += 1
        self.prefills.append((seq, tokens))
        self.prefill_tokens += tokens
        self.prefill_kv_tokens += seq.computed
        self.prefill_pairs += tokens * (seq.computed + tokens / 2)

    def step(self, start_s: float, costs: CostModel, charge_prefill: bool) -> Step:
        """Its description; uncharged prompt tokens are reported but take no time."""
        duration_s = costs.step_s(
            batch=len(self.decodes),
            context=self.decode_kv_tokens,
            chunk=self.prefill_tokens if charge_prefill else 0,
            chunk_pairs=self.prefill_pairs if charge_prefill else 0.0,
        )
        return Step(
            start_s=start_s,
            duration_s=duration_s,
            prefill_requests=len(self.prefills),
            prefill_tokens=self.prefill_tokens,
            prefill_kv_tokens=self.prefill_kv_tokens,
            decode_requests=len(self.decodes),
            decode_kv_tokens=self.decode_kv_tokens,
        )
