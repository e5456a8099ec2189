# SPDX-License-Identifier: Apache-2.0
"""Logs of real vLLM runs as LLMServingSim's bench writes them (casys-kaist, MIT), as values.

Owns: reading one run folder (meta.json, requests.jsonl, optional simulator_config.json), the clocks
of its log, and finding the folder of operator measurements that belongs to it. Does not own: the
fit of those (controller.costs), the replay (vllm_replay).

The log has two clocks. `arrival_time` is wall clock at the frontend; the other stamps are the
engine's monotonic clock: `queued_ts` when the engine took the request in, which a busy engine does
only between two steps, `first_token_ts` and `last_token_ts` at the end of the step. Arrivals are
brought onto the engine's clock by the smallest lag seen. TTFT = first_token_ts - queued_ts, TPOT =
(last_token_ts - first_token_ts)/(output - 1), latency = last_token_ts - queued_ts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from controller.costs.architecture import (
    Architecture,
    llama31_8b,
    llama31_70b,
    qwen3_30b_a3b,
    qwen3_32b,
)
from controller.costs.collectives import Link
from controller.costs.tables import Floats
from controller.errors import UserError

# By the model id's last part, lower case; a longer id (…-Instruct) has the same shapes.
ARCHITECTURES = {
    "llama-3.1-8b": llama31_8b,
    "llama-3.1-70b": llama31_70b,
    "qwen3-32b": qwen3_32b,
    "qwen3-30b-a3b": qwen3_30b_a3b,
}
# Where simulator_config.json is missing or silent: one direction of a PCIe link through host
# memory, the memory that the GPU is sold with, and 0.9 of it as vLLM takes by default.
DEFAULT_LINK = Link(latency_s=20e-6, bandwidth_bytes_s=16e9)
DEFAULT_UTILISATION = 0.9
MEMORY_GIB = {"rtx4090": 24.0, "rtxpro6000": 96.0}
_STAMPS = ("queued_ts", "first_token_ts", "last_token_ts")


@dataclass(frozen=True, slots=True)
class Log:
    """Requests in order of arrival, all (n,); seconds on the engine's clock from the first."""

    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    arrival_s: Floats
    queued_s: Floats
    first_s: Floats
    last_s: Floats

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: the engine as it was started, the machine, and what it logged."""

    name: str
    model: str
    hardware: str
    tp: int
    dp: int
    expert_parallel: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int | None  # as vLLM reported it; None: computed from memory
    prefix_caching: bool
    async_scheduling: bool
    graphs: bool  # CUDA graphs
    memory_bytes: float
    utilisation: float
    link: Link
    log: Log


def run_folders(folder: Path) -> list[Path]:
    """The run folders in `folder`, or itself if it is one. Raises UserError if there is none."""
    if (folder / "meta.json").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/meta.json"))
    if not found:
        raise UserError(f"{folder}: no run folder with a meta.json")
    return found


def read_run(folder: Path) -> Run:
    """One run. Raises UserError that names file and field."""
    meta = _json(folder / "meta.json")
    path = folder / "simulator_config.json"
    config = _json(path) if path.is_file() else {}
    engine = meta.get("engine_kwargs")
    if not isinstance(engine, dict) or "model" not in meta:
        raise UserError(f"{folder / 'meta.json'}: needs model and engine_kwargs")
    kv, device = meta.get("kv_cache") or {}, meta.get("hardware") or {}
    instance = _instance(config)
    memory = instance.get("npu_mem") or {}
    hardware = str(instance.get("hardware") or device.get("device_name") or folder.name)
    return Run(
        name=folder.name,
        model=str(meta["model"]),
        hardware=hardware,
        tp=int(engine.get("tensor_parallel_size") or 1),
        dp=int(engine.get("data_parallel_size") or 1),
        expert_parallel=bool(engine.get("enable_expert_parallel")),
        max_num_seqs=int(engine.get("max_num_seqs") or 128),
        max_num_batched_tokens=int(engine.get("max_num_batched_tokens") or 2048),
        block_size=int(kv.get("block_size") or 16),
        num_blocks=kv.get("num_gpu_blocks"),
        prefix_caching=_resolved(meta, "cache_config", "enable_prefix_caching"),
        async_scheduling=_resolved(meta, "scheduler_config", "async_scheduling"),
        graphs=not engine.get("enforce_eager"),
        memory_bytes=float(
            device.get("device_total_memory_bytes")
            or 2**30 * (memory.get("mem_size") or _memory_gib(hardware))
        ),
        utilisation=float(
            kv.get("gpu_memory_utilization") or memory.get("mem_util") or DEFAULT_UTILISATION
        ),
        link=_link(config),
        log=read_log(folder / "requests.jsonl"),
    )


def read_log(path: Path) -> Log:
    """The requests of a run. Raises UserError with the line."""
    rows = [_row(line, f"{path}:{number}") for number, line in enumerate(_lines(path), start=1)]
    if not rows:
        raise UserError(f"{path}: no requests")
    prompt, output, arrival, queued, first, last = (np.array(c) for c in zip(*rows, strict=True))
    arrival = arrival + np.min(queued - arrival)  # NaN where one is missing
    arrival = queued if np.isnan(arrival).any() else arrival
    order = np.argsort(arrival, kind="stable")
    start = arrival.min()
    times = (values[order] - start for values in (arrival, queued, first, last))
    return Log(prompt[order].astype(int), output[order].astype(int), *times)


def architecture(model: str) -> Architecture:
    """The shapes of a model id or of the path of a checkpoint. Raises UserError."""
    known = _known(model)
    if known is None:
        raise UserError(f"model {model}: unknown shapes; known: {', '.join(sorted(ARCHITECTURES))}")
    return ARCHITECTURES[known]()


def operator_folder(profiles: Path, run: Run, tp: int) -> Path:
    """The folder of operator measurements of a run's model and GPU at `tp`. Raises UserError."""
    same, names = [], []
    for path in sorted(profiles.glob("*/meta.yaml")):
        meta = yaml.safe_load(path.read_text())
        names.append(path.parent.name)
        if _known(str(meta["model"])) == _known(run.model):
            same.append((str(meta.get("hardware", "")), path.parent))
    mine = [path for hardware, path in same if _squeeze(hardware) in _squeeze(run.hardware)]
    found = mine or [path for _, path in same if len(same) == 1]
    if not found:
        raise UserError(
            f"{run.name}: no operator measurements of {run.model} on {run.hardware} in {profiles}; "
            f"there are {', '.join(names) or 'none'}"
        )
    folder = found[0] / f"tp{tp}"
    if not folder.is_dir():
        raise UserError(f"{run.name}: {folder} is missing: no measurements at tensor parallel {tp}")
    return folder


def _known(model: str) -> str | None:
    """The longest key of ARCHITECTURES that a model id or the path of a checkpoint starts with."""
    name = model.rstrip("/").split("/")[-1].lower()
    found = [known for known in ARCHITECTURES if name.startswith(known)]
    return max(found, key=len, default=None)


def _memory_gib(hardware: str) -> float:
    """What a GPU is sold with, by name. Raises UserError."""
    for name, size in MEMORY_GIB.items():
        if name in _squeeze(hardware):
            return size
    raise UserError(f"{hardware}: unknown memory; give npu_mem.mem_size in simulator_config.json")


def _squeeze(name: str) -> str:
    """`NVIDIA RTX PRO 6000 ...` and `RTXPRO6000` alike."""
    return "".join(c for c in name.lower() if c.isalnum())


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected an object")
    return value


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def _row(line: str, place: str) -> tuple[float, ...]:
    """(prompt, output, arrival or NaN, queued, first, last)."""
    try:
        row = json.loads(line)
        prompt, output = int(row["input_toks"]), int(row["output_toks"])
        stamps = [float(row[name]) for name in _STAMPS]
    except (ValueError, TypeError, KeyError) as error:
        needed = ", ".join(("input_toks", "output_toks", *_STAMPS))
        raise UserError(f"{place}: {error!r}; a row needs numbers in {needed}") from None
    if prompt < 1 or output < 1 or not stamps[0] <= stamps[1] <= stamps[2]:
        raise UserError(f"{place}: lengths must be above 0 and the stamps in order")
    arrival = row.get("arrival_time")
    return (prompt, output, float("nan") if arrival is None else float(arrival), *stamps)


def _resolved(meta: dict[str, Any], section: str, name: str) -> bool:
    """A switch that vLLM has on by default, as newer logs report it; True where they do not."""
    sections = meta.get("resolved_config") or {}
    return bool((sections.get(section) or {}).get(name, True))


def _instance(config: dict[str, Any]) -> dict[str, Any]:
    """The first instance of the first node of a simulator_config, {} if there is none."""
    nodes = config.get("nodes") or [{}]
    instances = nodes[0].get("instances") or [{}]
    return dict(instances[0])


def _link(config: dict[str, Any]) -> Link:
    """GB/s and nanoseconds of a simulator_config (the innermost, where it lists several
    dimensions); the defaults where it is silent."""
    bandwidth, latency = (
        value[0] if isinstance(value, list) else value
        for value in (config.get("link_bw"), config.get("link_latency"))
    )
    return Link(
        latency_s=DEFAULT_LINK.latency_s if latency is None else latency * 1e-9,
        bandwidth_bytes_s=DEFAULT_LINK.bandwidth_bytes_s if bandwidth is None else bandwidth * 1e9,
    )
