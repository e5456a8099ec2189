# SPDX-License-Identifier: Apache-2.0
"""Round numbers, request builders and a virtual-time driver for the engine tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.costs.model import TableCost
from controller.costs.tables import linear_tables
from controller.engine import Engine, EngineRequest, EngineSpec, Output, Pull, Step

# 10 ms a step, 1 ms a decode, 0.01 ms a context token, 0.1 ms a prompt token, 1 us a pair;
# a transfer is 2 ms and 1 ms a token.
COSTS = TableCost(
    linear_tables(
        base_s=0.010,
        per_sequence_s=0.001,
        per_context_token_s=0.00001,
        per_prefill_token_s=0.0001,
        per_prefill_pair_s=0.000001,
        max_chunk_tokens=1024,
        kv_latency_s=0.002,
        kv_bytes_per_token=1000,
        kv_bandwidth_bytes_s=1_000_000.0,
    )
)


def spec(**changes: object) -> EngineSpec:
    """A small engine: 64 blocks of 4 tokens, 32 tokens and 8 requests a step."""
    values: dict[str, object] = {
        "block_size": 4,
        "num_blocks": 64,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 8,
    }
    return EngineSpec(**{**values, **changes})  # type: ignore[arg-type]


def engine(**changes: object) -> Engine:
    """An engine with `spec(**changes)` and round costs."""
    return Engine(spec(**changes), COSTS)


def contents(prompt_tokens: int, block_size: int, family: int) -> tuple[int, ...]:
    """Contents of a prompt of a family: longer prompts of one family extend shorter ones."""
    full, rest = divmod(prompt_tokens, block_size)
    chain = [family * 1_000_000 + index + 1 for index in range(full)]
    return tuple(chain + ([family * 1_000_000 + 500_000 + full * 100 + rest] if rest else []))


def request(
    request_id: str,
    prompt: int,
    output: int = 1,
    family: int | None = None,
    block_size: int = 4,
    **changes: object,
) -> EngineRequest:
    """A request; without a family its prompt is nobody else's."""
    family = sum(ord(c) << (8 * i) for i, c in enumerate(request_id)) if family is None else family
    return EngineRequest(
        request_id=request_id,
        prompt_tokens=prompt,
        max_output_tokens=output,
        contents=contents(prompt, block_size, family),
        **changes,  # type: ignore[arg-type]
    )


def good_pull(source: Sequence[int], pull: Pull) -> tuple[int, ...]:
    """What an intact source returns for a pull of a prompt with contents `source`."""
    return tuple(source[pull.skip_blocks : pull.skip_blocks + pull.blocks])


def step(unit: Engine, now_s: float) -> tuple[Step, list[Output], float]:
    """One step that must run: (step, outputs, end)."""
    running = unit.begin_step(now_s)
    assert running is not None
    end_s = now_s + running.duration_s
    return running, unit.finish_step(end_s), end_s


def drain(
    unit: Engine, now_s: float, seen: Callable[[Step, list[Output]], None] | None = None
) -> float:
    """Run steps until nothing can run; returns the time."""
    for _ in range(100_000):
        running = unit.begin_step(now_s)
        if running is None:
            return now_s
        now_s += running.duration_s
        outputs = unit.finish_step(now_s)
        if seen is not None:
            seen(running, outputs)
    raise AssertionError("does not come to rest")
