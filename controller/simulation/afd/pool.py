# SPDX-License-Identifier: Apache-2.0
"""A decode pool split into attention and FFN workers.

Owns: the split, and how many workers a token visits. Does not own: times (costs, pipeline).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from controller.errors import UserError


class AfdError(UserError):
    """A pool that cannot hold the model; str() is one line."""


class FfnSplit(str, Enum):
    """What the FFN workers have between them."""

    REPLICAS = "replicas"
    """Each holds all FFN weights and gets an equal share of the tokens."""
    SPREAD = "spread"
    """Each holds an equal share of the weights, of every matrix for a dense FFN, of the experts
    for MoE, and gets the tokens that need it."""


@dataclass(frozen=True, slots=True)
class AfdPool:
    """`attention_workers` + `ffn_workers` GPUs."""

    attention_workers: int
    ffn_workers: int
    split: FfnSplit = FfnSplit.REPLICAS
    micro_batches: int = 3
    """2 hide computing behind computing, the third hides the links as well."""
    max_sequences: int = 256
    """Of one attention worker, over all its micro-batches."""

    def __post_init__(self) -> None:
        counts = (self.attention_workers, self.ffn_workers, self.micro_batches, self.max_sequences)
        if min(counts) < 1:
            raise AfdError(f"attention-FFN pool {counts}: every count must be at least 1")

    def copies(self, experts_per_token: int) -> float:
        """FFN workers that one token travels to; 0 experts a token mean a dense FFN.

        For spread experts the expected number under uniform routing.
        """
        if self.split is FfnSplit.REPLICAS:
            return 1.0
        if experts_per_token == 0:
            return float(self.ffn_workers)
        return self.ffn_workers * (1 - (1 - 1 / self.ffn_workers) ** experts_per_token)
