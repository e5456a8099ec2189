# SPDX-License-Identifier: Apache-2.0
"""The shapes of a transformer and what follows from them: parameters and KV bytes.

Owns: counting. Does not own: how shapes are split over GPUs (memory, compose).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only transformer. Sizes are elements, `*_bytes` bytes an element.

    `experts` = 0 is dense. In a mixture of experts the first `dense_layers` layers keep an MLP of
    `intermediate`, the others have `experts` of `expert_intermediate` and `shared_experts` more
    that see every token. `kv_latent` above 0 means latent attention (MLA): one vector of that
    size a token and layer is cached in place of keys and values, the same on every tensor rank.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    tied_embeddings: bool = False
    kv_latent: int = 0
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def kv_bytes_per_token(self) -> float:
        """KV cache of one token over all layers and ranks, without replication."""
        elements = self.kv_latent or 2 * self.kv_heads * self.head_dim
        return self.layers * elements * self.kv_bytes

    @property
    def attention_parameters(self) -> int:
        """Query, key, value and output projections of one layer."""
        return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)

    @property
    def expert_parameters(self) -> int:
        """Gate, up and down projections of one expert."""
        return 3 * self.hidden * self.expert_intermediate

    @property
    def routed_parameters(self) -> int:
        """Experts that expert parallelism spreads, over all layers."""
        return self.moe_layers * self.experts * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Embedding and head; one matrix where they are tied."""
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def parameters(self) -> int:
        """All parameters but norms and biases (below 0.1 %)."""
        mlp_layers = self.layers - self.moe_layers
        mlp = mlp_layers * 3 * self.hidden * self.intermediate
        shared = self.moe_layers * self.shared_experts * self.expert_parameters
        router = self.moe_layers * self.hidden * self.experts
        layers = self.layers * self.attention_parameters + mlp + shared + router
        return layers + self.routed_parameters + self.embedding_parameters


def llama31_8b() -> Architecture:
    """meta-llama/Llama-3.1-8B (its published config.json)."""
    return Architecture("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256)


def llama31_70b() -> Architecture:
    """meta-llama/Llama-3.1-70B (its published config.json)."""
    return Architecture("Llama-3.1-70B", 80, 8192, 64, 8, 128, 28672, 128256)


def qwen3_32b() -> Architecture:
    """Qwen/Qwen3-32B (its published config.json)."""
    return Architecture("Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936)


def qwen3_30b_a3b() -> Architecture:
    """Qwen/Qwen3-30B-A3B (its published config.json)."""
    return Architecture(
        name="Qwen3-30B-A3B",
        layers=48,
        hidden=2048,
        heads=32,
        kv_heads=4,
        head_dim=128,
        intermediate=6144,
        vocab=151936,
        experts=128,
        experts_per_token=8,
        expert_intermediate=768,
    )
