# SPDX-License-Identifier: Apache-2.0
"""Seeded random weights for `equilibrium/tiny`, so that a real engine's answers mean something.

With dummy weights another prompt's KV hardly changes an answer, and a test of the hand-over
proves nothing. The scales below make greedy answers depend on the whole prompt: projections wide
enough that attention picks positions, norms at one. Tests keep a negative control beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_SEED = 20_261_130
_EMBEDDING = 0.3
_QUERY_KEY_OUT = 0.12
_VALUE_HEAD = 0.06
_MLP = 0.05


def tiny_weights(architecture: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """All tensors of the Llama checkpoint, float32, by Hugging Face name."""
    rng = np.random.default_rng(_SEED)
    hidden, inner = architecture["hidden_size"], architecture["intermediate_size"]
    heads = architecture["num_attention_heads"] * architecture["head_dim"]
    kv_heads = architecture["num_key_value_heads"] * architecture["head_dim"]
    vocabulary = architecture["vocab_size"]

    def normal(rows: int, columns: int, scale: float) -> np.ndarray[Any, Any]:
        return rng.normal(0.0, scale, (rows, columns)).astype(np.float32)

    ones = np.ones(hidden, np.float32)
    tensors = {
        "model.embed_tokens.weight": normal(vocabulary, hidden, _EMBEDDING),
        "model.norm.weight": ones.copy(),
        "lm_head.weight": normal(vocabulary, hidden, _VALUE_HEAD),
    }
    for layer in range(architecture["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": ones.copy(),
            f"{prefix}post_attention_layernorm.weight": ones.copy(),
            f"{prefix}self_attn.q_proj.weight": normal(heads, hidden, _QUERY_KEY_OUT),
            f"{prefix}self_attn.k_proj.weight": normal(kv_heads, hidden, _QUERY_KEY_OUT),
            f"{prefix}self_attn.v_proj.weight": normal(kv_heads, hidden, _VALUE_HEAD),
            f"{prefix}self_attn.o_proj.weight": normal(hidden, heads, _QUERY_KEY_OUT),
            f"{prefix}mlp.gate_proj.weight": normal(inner, hidden, _MLP),
            f"{prefix}mlp.up_proj.weight": normal(inner, hidden, _MLP),
            f"{prefix}mlp.down_proj.weight": normal(hidden, inner, _MLP),
        }
    return tensors
