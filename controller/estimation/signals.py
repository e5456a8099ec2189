# SPDX-License-Identifier: Apache-2.0
"""Which quantities are read, and under which names Dynamo and its engines export them.

Owns: the closed set of signals, every name they have had, newest first. Does not own: parsing
(exposition.py), windows.

Checked against metric text of Dynamo 1.4.2 and 1.6.1. `planner:` and `nv_llm_http_service_` are
what `dynamo_planner_` and `dynamo_frontend_` were called before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """How values behave over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class IdBase(str, Enum):
    """How a family writes instance ids."""

    DECIMAL = "decimal"
    HEX = "hex"


class Signal(str, Enum):
    """A quantity, whatever it is called. Closed: append, never reorder or rename."""

    STARTED = "requests_started"
    ENDED = "requests_ended"
    ACTIVE = "requests_active"
    QUEUED = "requests_queued"
    TTFT = "ttft"
    ITL = "itl"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    CACHED_TOKENS = "cached_tokens"
    DURATION = "duration"
    MODEL_READY = "model_ready"
    BLOCK_SIZE = "block_size"
    STEP_TOKENS = "max_num_batched_tokens"
    KV_BLOCKS = "total_kv_blocks"
    BOOKED_PREFILL = "booked_prefill_tokens"
    BOOKED_DECODE = "booked_decode_blocks"
    ROUTER_PENDING = "router_queue_pending"
    HIT_RATE = "kv_hit_rate"
    REGISTERED = "worker_registered"
    WORKER_REQUESTS = "worker_requests"
    WORKER_ACTIVE = "worker_active"
    WORKER_DURATION = "worker_duration"
    KV_USAGE = "kv_usage"
    RUNNING = "engine_running"
    WAITING = "engine_waiting"
    PREEMPTIONS = "preemptions"
    PLANNER_PREFILL = "planner_prefill_workers"
    PLANNER_DECODE = "planner_decode_workers"
    EQ_AGE = "equilibrium_oldest_age"
    EQ_WAITING = "equilibrium_waiting"
    EQ_IN_FLIGHT = "equilibrium_in_flight"
    EQ_DECISIONS = "equilibrium_decisions"
    EQ_PREFILLS = "equilibrium_prefill_seconds"
    UP = "up"
    PASS_BUSY = "forward_pass_busy"
    PASS_PROMPT_TOKENS = "forward_pass_prompt_tokens"
    PASS_PREFILLS_QUEUED = "forward_pass_prefills_queued"
    PASS_DECODES_QUEUED = "forward_pass_decodes_queued"
    PASS_RUNNING = "forward_pass_running"


@dataclass(frozen=True, slots=True)
class Spec:
    """A signal's kind, its names (newest first) and how its `worker_id` label is written."""

    kind: Kind
    names: tuple[str, ...]
    ids: IdBase = IdBase.DECIMAL
    buckets: bool = True
    """Whether the buckets of a histogram are read, or its sum and count only."""


def _frontend(kind: Kind, *names: str) -> Spec:
    return Spec(kind, tuple(f"dynamo_frontend_{name}" for name in names))


def _worker(kind: Kind, *names: str) -> Spec:
    # A pool has hundreds of these: of their histograms only the means are of use.
    return Spec(kind, tuple(f"dynamo_component_{name}" for name in names), IdBase.HEX, False)


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_EQ = "dynamo_equilibrium_"

SPECS: dict[Signal, Spec] = {
    Signal.STARTED: _frontend(_C, "requests_started_total"),
    Signal.ENDED: _frontend(_C, "requests_total"),
    Signal.ACTIVE: _frontend(_G, "active_requests", "inflight_requests"),
    Signal.QUEUED: _frontend(_G, "stage_requests", "queued_requests"),
    Signal.TTFT: _frontend(_H, "time_to_first_token_seconds"),
    Signal.ITL: _frontend(_H, "inter_token_latency_seconds"),
    Signal.INPUT_TOKENS: _frontend(_H, "input_sequence_tokens"),
    Signal.OUTPUT_TOKENS: _frontend(_H, "output_sequence_tokens"),
    Signal.CACHED_TOKENS: _frontend(_H, "cached_tokens"),
    Signal.DURATION: _frontend(_H, "request_duration_seconds"),
    Signal.MODEL_READY: _frontend(_G, "model_ready"),
    Signal.BLOCK_SIZE: _frontend(_G, "model_kv_cache_block_size"),
    Signal.STEP_TOKENS: _frontend(_G, "model_max_num_batched_tokens"),
    Signal.KV_BLOCKS: _frontend(_G, "model_total_kv_blocks"),
    Signal.BOOKED_PREFILL: _frontend(_G, "worker_active_prefill_tokens"),
    Signal.BOOKED_DECODE: _frontend(_G, "worker_active_decode_blocks"),
    Signal.ROUTER_PENDING: _frontend(_G, "router_queue_pending_requests"),
    Signal.HIT_RATE: _worker(_H, "router_kv_hit_rate"),
    # Its `worker_id` is the frontend's own; `router_worker_id`, in decimal, is the worker.
    Signal.REGISTERED: _worker(_G, "router_worker_registered"),
    Signal.WORKER_REQUESTS: _worker(_C, "requests_total"),
    Signal.WORKER_ACTIVE: _worker(_G, "inflight_requests"),
    Signal.WORKER_DURATION: _worker(_H, "request_duration_seconds"),
    Signal.KV_USAGE: Spec(
        _G, ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage",
             "dynamo_component_gpu_cache_usage_percent"),
    ),
    Signal.RUNNING: Spec(_G, ("vllm:num_requests_running", "sglang:num_running_reqs")),
    Signal.WAITING: Spec(_G, ("vllm:num_requests_waiting", "sglang:num_queue_reqs")),
    Signal.PREEMPTIONS: Spec(_C, ("vllm:num_preemptions_total",)),
    Signal.PLANNER_PREFILL: Spec(
        _G, ("dynamo_planner_num_prefill_workers", "dynamo_planner_num_p_workers")
    ),
    Signal.PLANNER_DECODE: Spec(
        _G, ("dynamo_planner_num_decode_workers", "dynamo_planner_num_d_workers")
    ),
    Signal.EQ_AGE: Spec(_G, (f"{_EQ}queue_oldest_age_seconds",)),
    Signal.EQ_WAITING: Spec(_G, (f"{_EQ}queue_waiting",)),
    Signal.EQ_IN_FLIGHT: Spec(_G, (f"{_EQ}prefills_in_flight",)),
    Signal.EQ_DECISIONS: Spec(_C, (f"{_EQ}route_decisions_total",)),
    Signal.EQ_PREFILLS: Spec(_H, (f"{_EQ}prefill_seconds",)),
    Signal.UP: Spec(_G, ("up",)),
    # Not metric text: what the event plane says of each forward pass (runtime/sources).
    Signal.PASS_BUSY: Spec(_C, ("forward_pass:busy_seconds",), IdBase.HEX),
    Signal.PASS_PROMPT_TOKENS: Spec(_C, ("forward_pass:prompt_tokens",), IdBase.HEX),
    Signal.PASS_PREFILLS_QUEUED: Spec(_G, ("forward_pass:prefills_queued",), IdBase.HEX),
    Signal.PASS_DECODES_QUEUED: Spec(_G, ("forward_pass:decodes_queued",), IdBase.HEX),
    Signal.PASS_RUNNING: Spec(_G, ("forward_pass:running",), IdBase.HEX),
}  # fmt: skip

_FORMER_PREFIXES = {
    "dynamo_frontend_": "nv_llm_http_service_",
    "dynamo_planner_": "planner:",
}


class Part(str, Enum):
    """What a sample is of its family."""

    VALUE = "value"
    BUCKET = "bucket"
    SUM = "sum"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sample name that is read: `rank` 0 is the newest name of its signal."""

    signal: Signal
    part: Part
    rank: int
    family: str


def wanted_samples(frontend_prefix: str = "dynamo_frontend") -> Mapping[str, Wanted]:
    """Every sample name that is read. `frontend_prefix` is Dynamo's DYN_METRICS_PREFIX."""
    found: dict[str, Wanted] = {}
    for signal, spec in SPECS.items():
        for rank, family in enumerate(_all_names(spec.names, frontend_prefix)):
            for name, part in _samples(family, spec):
                found.setdefault(name, Wanted(signal, part, rank, family))
    return found


def _all_names(names: tuple[str, ...], frontend_prefix: str) -> list[str]:
    """Current names first, then what they were under a former prefix."""
    former = []
    for prefix, before in _FORMER_PREFIXES.items():
        former += [name.replace(prefix, before) for name in names if name.startswith(prefix)]
    renamed = [name.replace("dynamo_frontend_", f"{frontend_prefix}_") for name in names]
    return list(dict.fromkeys([*renamed, *names, *former]))


def _samples(family: str, spec: Spec) -> list[tuple[str, Part]]:
    if spec.kind is not Kind.HISTOGRAM:
        return [(family, Part.VALUE)]
    buckets = [(f"{family}_bucket", Part.BUCKET)] if spec.buckets else []
    return [*buckets, (f"{family}_sum", Part.SUM), (f"{family}_count", Part.COUNT)]
