# SPDX-License-Identifier: Apache-2.0
"""Operator tables of an invented GPU: kernels that overlap in waves, in the files' own format."""

from __future__ import annotations

import numpy as np

CHUNKS, BATCHES = (16, 64, 256, 1024), (1, 4, 16, 64)
SIZES = (0, 16, 128, 1024, 8192)


def prefill_us(chunk: float, history: float) -> float:
    """Attention of a chunk: a floor, then work by pairs."""
    return 8.0 + 1e-4 * chunk * (history + chunk / 2) + 0.01 * history


def decode_us(batch: float, context: float) -> float:
    """Attention of decodes: launch-bound, then bandwidth-bound."""
    return 8.0 + 0.2 * batch + 0.002 * batch * context


def mixed_us(chunk: float, history: float, batch: float, context: float) -> float:
    """The longer part and 0.6 of the shorter; decodes are twice as slow in the mixed kernel."""
    parts = prefill_us(chunk, history), 2 * decode_us(batch, context)
    return max(parts) + 0.6 * min(parts)


def attention_csv(noise: float = 0.0, seed: int = 0) -> str:
    """attention.csv over the whole grid."""
    rng = np.random.default_rng(seed)
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]

    def add(*row: float) -> None:
        *shape, time_us = row
        time_us *= np.exp(rng.normal(0, noise))
        lines.append(",".join(f"{value:g}" for value in (*shape, time_us)))

    for batch in BATCHES:
        for context in SIZES[1:]:
            add(0, 0, batch, context, decode_us(batch, context))
    for chunk in CHUNKS:
        for history in SIZES:
            add(chunk, history, 0, 0, prefill_us(chunk, history))
            for batch in BATCHES:
                for context in SIZES[1:]:
                    time_us = mixed_us(chunk, history, batch, context)
                    add(chunk, history, batch, context, time_us)
    return "\n".join(lines) + "\n"


def curve_csv(axis: str, layers: dict[str, float]) -> str:
    """dense.csv or per_sequence.csv: layer name to microseconds a token on top of 10."""
    lines = [f"layer,{axis},time_us"]
    for layer, slope in layers.items():
        lines += [f"{layer},{n},{10 + slope * n:g}" for n in (1, 2, 4, 16, 64, 256, 1024, 2048)]
    return "\n".join(lines) + "\n"


def moe_csv() -> str:
    """moe.csv: 6 us an expert and 0.5 us a token that it gets."""
    lines = ["tokens,activated_experts,time_us"]
    for tokens in (1, 8, 64, 512):
        for activated in (8, 32, 128):
            lines.append(f"{tokens},{activated},{6 * activated + 0.5 * tokens:g}")
    return "\n".join(lines) + "\n"


def texts(noise: float = 0.0, moe: bool = False) -> dict[str, str]:
    """A folder."""
    found = {
        "attention": attention_csv(noise),
        "dense": curve_csv("tokens", {"embedding": 0.0, "layernorm": 0.0, "qkv_proj": 0.1}),
        "per_sequence": curve_csv("sequences", {"lm_head": 0.5, "sampler": 0.0}),
    }
    return {**found, "moe": moe_csv()} if moe else found
