# SPDX-License-Identifier: Apache-2.0
"""Following the forward passes of live workers: subscription in, fits out.

Owns: the subscriptions, the clock, when the fits are asked. Does not own: the fit
(controller.costs.live_fit), what is written (controller.cli.profile).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from controller.costs.live_fit import LiveFit
from controller.costs.live_passes import Pass
from controller.runtime.clock import Clock
from controller.runtime.dynamo_io import make_runtime
from controller.runtime.forward_passes import ForwardPasses
from controller.runtime.profiling.target import LiveTarget
from controller.runtime.stop_signals import on_stop_signals

_TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Cards:
    """What the workers' model cards say; None where they say nothing."""

    model: str | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None


class PassReader:
    """Turns ForwardPassMetrics into `Pass`, and counts the messages that went missing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counters: dict[str, int] = {}
        self.lost = 0

    def read(self, metrics: Any) -> Pass:
        """One message; times are of the deployment's clock."""
        rank = f".{metrics.dp_rank}" if metrics.dp_rank else ""
        worker = f"{int(metrics.worker_id):x}{rank}"
        last = self._counters.get(worker)
        if last is not None and metrics.counter_id > last + 1:
            self.lost += metrics.counter_id - last - 1
        self._counters[worker] = metrics.counter_id
        scheduled = metrics.scheduled_requests
        return Pass(
            worker=worker,
            at_s=self._clock.now(),
            batch=scheduled.num_decode_requests,
            context=scheduled.sum_decode_kv_tokens,
            prefills=scheduled.num_prefill_requests,
            chunk=scheduled.sum_prefill_tokens,
            history=scheduled.sum_prefill_kv_tokens,
            wall_s=float(metrics.wall_time),
            number=metrics.counter_id,
        )


@dataclass(slots=True)
class Followed:
    """What came of following: a fit by name (`all`, or one a worker)."""

    fits: dict[str, LiveFit]
    cards: Cards
    lost: int = 0
    messages: int = 0


OnFit = Callable[[str, LiveFit, Cards], None]


async def follow(
    target: LiveTarget,
    make_fit: Callable[[], LiveFit],
    per_worker: bool,
    duration_s: float | None,
    on_fit: OnFit,
) -> Followed:
    """Listen for `duration_s` (None: until SIGINT or SIGTERM), fitting again whenever it is due.

    Seconds of the deployment's clock. `on_fit` is told of every new fit. A signal ends it early.
    """
    os.environ.update(target.environ)
    clock = Clock(target.time_scale)
    reader = PassReader(clock)
    followed = Followed({}, Cards())

    def take(one: Pass) -> None:
        followed.messages += 1
        name = one.worker if per_worker else "all"
        if name not in followed.fits:
            followed.fits[name] = make_fit()
        followed.fits[name].observe(one)

    runtime = make_runtime(target.dynamo)
    try:
        with _subscribed(runtime, target, reader, take) as cards, asked_to_stop() as stop:
            end_s = None if duration_s is None else clock.now() + duration_s
            while not stop.is_set() and (end_s is None or clock.now() < end_s):
                await _wait(stop, _TICK_S)
                followed.cards = cards()
                _refit(followed, clock.now(), False, on_fit)
            _refit(followed, clock.now(), True, on_fit)
    finally:
        runtime.shutdown()
    followed.lost = reader.lost
    return followed


def _refit(followed: Followed, now_s: float, last: bool, on_fit: OnFit) -> None:
    for name, fit in followed.fits.items():
        if fit.due(now_s, last):
            fit.refit(now_s)
            on_fit(name, fit, followed.cards)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


@contextmanager
def asked_to_stop() -> Iterator[asyncio.Event]:
    """Set by SIGINT or SIGTERM inside the block."""
    stop = asyncio.Event()
    with on_stop_signals(stop.set):
        yield stop


@contextmanager
def _subscribed(
    runtime: Any, target: LiveTarget, reader: PassReader, take: Callable[[Pass], None]
) -> Iterator[Callable[[], Cards]]:
    """Passes flow into `take` inside the block; yields a reader of the model cards."""
    from dynamo.llm import FpmEventSubscriber

    endpoints = [runtime.endpoint(path) for path in target.endpoints]
    passes = [ForwardPasses(endpoint, reader.read, take) for endpoint in endpoints]
    trackers = [FpmEventSubscriber(endpoint) for endpoint in endpoints]
    for tracker in trackers:
        tracker.start_tracking()
    try:
        yield lambda: _cards(trackers)
    finally:
        for tracker in trackers:
            tracker.shutdown()
        for one in passes:
            one.close()


def _cards(trackers: list[Any]) -> Cards:
    from controller.runtime.router.ports import read_cards

    for tracker in trackers:
        for card in read_cards(tracker).values():
            runtime = card.get("runtime_config") or {}
            return Cards(
                model=card.get("display_name"),
                max_num_batched_tokens=runtime.get("max_num_batched_tokens"),
                max_num_seqs=runtime.get("max_num_seqs"),
                block_size=card.get("kv_cache_block_size"),
                num_gpu_blocks=runtime.get("total_kv_blocks"),
            )
    return Cards()
