# SPDX-License-Identifier: Apache-2.0
"""Prefill tasks and views of a cluster with sensible defaults."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from lanes_kit import empty_lanes

from controller.routing.waiting import WaitingPrefills
from controller.types import ClusterView, DecodePool, Forecast, PrefillPool, PrefillTask


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
    tokens: Sequence[int] | None = None,
    waiting: WaitingPrefills | None = None,
    fresh: bool = False,
    **decodes_are: Sequence[int],
) -> ClusterView:
    """A view of prefill workers 100, 101, ... and decode workers 200, 201, ...

    `waiting` has one lane a prefill worker, by default empty ones; `decodes_are` are columns of
    DecodePool.
    """
    count, decodes = len(ttft), len(itl)
    prefill = PrefillPool(
        worker_ids=tuple(100 + i for i in range(count)),
        ttft_window_s=np.array(ttft, float),
        queue_s=np.array(prefill_queue or [0.0] * count, float),
        tokens=np.array(tokens or [0] * count, np.int64),
        cached_tokens=np.array(cached or [0] * count, np.int64),
        forecast=_forecast(waiting or empty_lanes(count), count),
        budget_tokens=1000,
        block_size=64,
    )
    columns = {"kv_tokens": [1 << 40] * decodes, "budget_tokens": [1000] * decodes} | decodes_are
    names = ("local_prefills", "batch", "context_tokens", "held_tokens", "cached_tokens")
    decode = DecodePool(
        worker_ids=tuple(200 + i for i in range(decodes)),
        itl_window_s=np.array(itl, float),
        queue_s=np.array(decode_queue or [0.0] * decodes, float),
        chunked=np.array(columns.pop("chunked", [1] * decodes), np.bool_),
        **{
            name: np.array(columns.get(name, [0] * decodes), np.int64)
            for name in (*names, "kv_tokens", "budget_tokens")
        },
    )
    return ClusterView(0.0, prefill, decode, bound, fresh)


def _forecast(waiting: WaitingPrefills, count: int) -> Forecast:
    lanes = np.arange(count)

    def forecast(task, predicted_s, due_s, cv):
        return waiting.forecasts(
            lanes, predicted_s, due_s, 0.0, cv, task.arrival_s, task.urgency, task.jump_s
        )

    return forecast
