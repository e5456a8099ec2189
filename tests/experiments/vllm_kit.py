# SPDX-License-Identifier: Apache-2.0
"""Run folders and operator measurements of an invented GPU, in the files' own formats."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np

from controller.costs.tables import StepTables, linear_tables
from experiments.vllm_runs import Log

MODEL = "Qwen/Qwen3-30B-A3B"
DENSE = ("embedding", "layernorm", "qkv_proj", "qk_norm", "o_proj", "final_layernorm")
TOKENS = (1, 8, 64, 256, 1024, 2048)
BATCHES, CONTEXTS, CHUNKS = (1, 8, 64, 256), (16, 256, 4096), (16, 256, 2048)


def round_tables(**changes: float) -> StepTables:
    """10 ms a step, 1 ms a decode, 0.1 ms a prompt token, nothing for context."""
    values = {
        "base_s": 0.010,
        "per_sequence_s": 0.001,
        "per_context_token_s": 0.0,
        "per_prefill_token_s": 0.0001,
        "per_prefill_pair_s": 0.0,
        "max_chunk_tokens": 2048,
        "kv_latency_s": 0.0,
        "kv_bytes_per_token": 1.0,
        "kv_bandwidth_bytes_s": 1e9,
    }
    return linear_tables(**{**values, **changes})  # type: ignore[arg-type]


def log_of(rows: list[tuple[float, int, int]]) -> Log:
    """A log of (arrival_s, prompt, output) without stamps."""
    arrival, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    none = np.full(len(rows), np.nan)
    return Log(prompt, output, arrival.astype(float), none, none, none)


def write_profiles(folder: Path, hardware: str = "RTX9090", model: str = MODEL) -> None:
    """meta.yaml and the four tables at TP 1: 10 us an operator and what grows with its size."""
    (folder / "tp1").mkdir(parents=True)
    (folder / "meta.yaml").write_text(f"model: {model}\nhardware: {hardware}\n")
    rows = {"attention": _attention(), "dense": _curves("tokens", DENSE)}
    rows["per_sequence"] = _curves("sequences", ("lm_head", "sampler"))
    rows["moe"] = ["tokens,activated_experts,time_us"] + [
        f"{tokens},{experts},{6 * experts + 0.2 * tokens:g}"
        for tokens, experts in itertools.product((8, 128, 2048), (8, 32, 128))
        if tokens * 8 >= experts
    ]
    for name, lines in rows.items():
        (folder / "tp1" / f"{name}.csv").write_text("\n".join(lines) + "\n")


def _curves(axis: str, names: tuple[str, ...]) -> list[str]:
    lines = [f"layer,{axis},time_us"]
    return lines + [f"{name},{n},{10 + 0.05 * n:g}" for name in names for n in TOKENS]


def _attention() -> list[str]:
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for batch, context in itertools.product(BATCHES, CONTEXTS):
        lines.append(f"0,0,{batch},{context},{8 + 0.002 * batch * context:g}")
    for chunk, history in itertools.product(CHUNKS, (0, 1024, 8192)):
        lines.append(f"{chunk},{history},0,0,{8 + 1e-4 * chunk * (history + chunk / 2):g}")
    return lines


def write_run(folder: Path, log: Log, **engine: object) -> None:
    """meta.json and requests.jsonl; the engine's clock is 1,000 s behind the wall clock."""
    folder.mkdir(parents=True)
    kwargs = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, **engine}
    meta = {"model": MODEL, "engine_kwargs": kwargs, "hardware": {"device_name": "RTX 9090"}}
    meta["hardware"]["device_total_memory_bytes"] = 96 * 2**30  # type: ignore[index]
    (folder / "meta.json").write_text(json.dumps(meta))
    lines = []
    for i in range(len(log)):
        row = {"request_id": f"bench-{i}", "arrival_time": 2000.0 + log.arrival_s[i]}
        row["input_toks"], row["output_toks"] = int(log.prompt_tokens[i]), int(log.output_tokens[i])
        row["queued_ts"], row["scheduled_ts"] = 1000.0 + log.queued_s[i], 0.0
        row["first_token_ts"] = 1000.0 + log.first_s[i]
        row["last_token_ts"] = 1000.0 + log.last_s[i]
        lines.append(json.dumps(row))
    (folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
