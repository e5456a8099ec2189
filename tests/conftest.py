# SPDX-License-Identifier: Apache-2.0
"""Record builders shared by the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import settings

from controller.costs.model import TableCost
from controller.costs.tables import linear_tables
from controller.types import ClusterView, DecodePool, PrefillPool, PrefillTask

# The first call of a cost model may compile its kernels: no deadline for single examples.
settings.register_profile("equilibrium", deadline=None)
settings.load_profile("equilibrium")

nan = float("nan")


@pytest.fixture
def unit_costs() -> TableCost:
    """1 ms a prompt token, 10 ms a step, 0.1 ms a KV token moved: arithmetic by head."""
    return TableCost(
        linear_tables(
            base_s=0.010,
            per_sequence_s=0.001,
            per_context_token_s=0.0,
            per_prefill_token_s=0.001,
            per_prefill_pair_s=0.0,
            max_chunk_tokens=1000,
            kv_latency_s=0.0,
            kv_bytes_per_token=1,
            kv_bandwidth_bytes_s=10_000.0,
        )
    )


def make_task(history: int = 0, increment: int = 500, **fields: object) -> PrefillTask:
    """A prefill task with sensible defaults."""
    values = {"request_id": "r", "arrival_s": 0.0} | fields
    return PrefillTask(history_tokens=history, increment_tokens=increment, **values)  # type: ignore[arg-type]


def make_view(
    ttft: Sequence[float] = (),
    prefill_queue: Sequence[float] | None = None,
    cached: Sequence[int] | None = None,
    itl: Sequence[float] = (),
    decode_queue: Sequence[float] | None = None,
    bound: int | None = None,
) -> ClusterView:
    """A view of prefill workers 100, 101, ... and decode workers 200, 201, ..."""
    count, decodes = len(ttft), len(itl)
    prefill = PrefillPool(
        worker_ids=tuple(100 + i for i in range(count)),
        ttft_window_s=np.array(ttft, float),
        queue_s=np.array(prefill_queue or [0.0] * count, float),
        cached_tokens=np.array(cached or [0] * count, np.int64),
    )
    decode = DecodePool(
        worker_ids=tuple(200 + i for i in range(decodes)),
        itl_window_s=np.array(itl, float),
        queue_s=np.array(decode_queue or [0.0] * decodes, float),
        batch=np.zeros(decodes, np.int64),
        context_tokens=np.zeros(decodes, np.int64),
    )
    return ClusterView(0.0, prefill, decode, bound)


@pytest.fixture
def task() -> Callable[..., PrefillTask]:
    return make_task


@pytest.fixture
def view() -> Callable[..., ClusterView]:
    return make_view
