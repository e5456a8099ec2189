# SPDX-License-Identifier: Apache-2.0
"""ForwardPassMetrics of the event plane as scrapes: busy time, prompt tokens, what is queued.

Owns: adding messages up between two looks. Does not own: the subscription
(controller.runtime.forward_passes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.estimation.exposition import Labels
from controller.estimation.scrapes import Scrape, Value
from controller.estimation.signals import Signal
from controller.runtime.forward_passes import ForwardPasses


@dataclass(slots=True)
class _Worker:
    busy_s: float = 0.0
    prompt_tokens: float = 0.0
    prefills_queued: float = 0.0
    decodes_queued: float = 0.0
    running: float = 0.0


@dataclass(frozen=True, slots=True)
class PassNumbers:
    """What a message says."""

    worker_id: str
    wall_s: float
    prompt_tokens: int
    prefills_queued: int
    decodes_queued: int
    running: int


def pass_numbers(metrics: Any) -> PassNumbers:
    """Off Dynamo's ForwardPassMetrics."""
    scheduled, queued = metrics.scheduled_requests, metrics.queued_requests
    return PassNumbers(
        worker_id=f"{int(metrics.worker_id):x}",
        wall_s=float(metrics.wall_time),
        prompt_tokens=int(scheduled.sum_prefill_tokens),
        prefills_queued=int(queued.num_prefill_requests),
        decodes_queued=int(queued.num_decode_requests),
        running=int(scheduled.num_prefill_requests + scheduled.num_decode_requests),
    )


class PassSource:
    """Listens to endpoints from `start` to `close`; `look` says what has added up."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._workers: dict[str, _Worker] = {}
        self._listening: list[ForwardPasses[PassNumbers]] = []
        self._now = now

    def start(self, endpoints: Sequence[Any]) -> None:
        """Follow Dynamo endpoints."""
        self._listening += [ForwardPasses(each, pass_numbers, self.hear) for each in endpoints]

    def close(self) -> None:
        """Stop listening."""
        for each in self._listening:
            each.close()

    def hear(self, message: PassNumbers) -> None:
        """One forward pass of a worker."""
        worker = self._workers.setdefault(message.worker_id, _Worker())
        worker.busy_s += max(0.0, message.wall_s)
        worker.prompt_tokens += message.prompt_tokens
        worker.prefills_queued = message.prefills_queued
        worker.decodes_queued = message.decodes_queued
        worker.running = message.running

    async def look(self) -> list[Scrape]:
        """One scrape a worker that was ever heard. An idle one sends nothing: it is not stale."""
        return [self._scrape(name, each) for name, each in self._workers.items()]

    def _scrape(self, name: str, worker: _Worker) -> Scrape:
        labels: Labels = (("worker_id", name),)
        values = {
            Signal.PASS_BUSY: worker.busy_s,
            Signal.PASS_PROMPT_TOKENS: worker.prompt_tokens,
            Signal.PASS_PREFILLS_QUEUED: worker.prefills_queued,
            Signal.PASS_DECODES_QUEUED: worker.decodes_queued,
            Signal.PASS_RUNNING: worker.running,
        }
        series: dict[Signal, dict[Labels, Value]] = {s: {labels: v} for s, v in values.items()}
        return Scrape(f"forward-passes/{name}", self._now(), series)
