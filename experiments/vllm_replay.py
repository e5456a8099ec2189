# SPDX-License-Identifier: Apache-2.0
"""A logged vLLM run through the engine law: virtual time, one engine or several in parallel.

Pure. Owns: the loop, the spread of arrivals over data-parallel engines, and lock-step. Does not
own: the law (controller.engine), step times (vllm_steps), what the log says (vllm_runs).

As in vLLM an engine takes requests in between two steps, which is when they count as queued; an
idle one does at once. The front end sends a request to the engine with the smallest
4*waiting + running, the first among equals (vLLM's load balancer, here with counts that are never
late).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from controller.costs.model import TableCost
from controller.engine import Engine, EngineRequest, EngineSpec
from controller.errors import UserError
from experiments.vllm_runs import Log, Run
from experiments.vllm_steps import EngineModel, Together

_WAITING_WEIGHT = 4


@dataclass(slots=True)
class Rank:
    """One data-parallel engine and the requests that it has not taken in yet."""

    engine: Engine
    inbox: deque[int]

    def score(self) -> int:
        """What the load balancer compares."""
        load = self.engine.load()
        waiting = load.waiting_requests + load.preempted_requests + len(self.inbox)
        return _WAITING_WEIGHT * waiting + load.running_requests


class Group:
    """Ranks whose steps begin and end together; `end_s` is inf while none has work."""

    def __init__(self, ranks: list[Rank], together: Together | None) -> None:
        self.ranks = ranks
        self.together = together
        self.end_s = math.inf
        self._running: list[Rank] = []

    def finish(self, now_s: float) -> list[tuple[str, float]]:
        """End the running step: (request, now) of every token."""
        tokens = [
            (output.request_id, now_s)
            for rank in self._running
            for output in rank.engine.finish_step(now_s)
        ]
        self.end_s, self._running = math.inf, []
        return tokens

    def begin(self, now_s: float) -> None:
        """Start the next step, if any rank has work."""
        steps = [rank.engine.begin_step(now_s) for rank in self.ranks]
        self._running = [r for r, step in zip(self.ranks, steps, strict=True) if step]
        if not self._running:
            return
        duration_s = max(step.duration_s for step in steps if step)
        if self.together is not None:
            held = [step.decode_requests + step.prefill_tokens if step else 0 for step in steps]
            duration_s += self.together.extra_s(held)
        self.end_s = now_s + duration_s


def engine_spec(run: Run, model: EngineModel) -> EngineSpec:
    """The engine of a run, as vLLM started it."""
    return EngineSpec(
        block_size=run.block_size,
        num_blocks=model.num_blocks,
        max_num_batched_tokens=run.max_num_batched_tokens,
        max_num_seqs=run.max_num_seqs,
        prefix_cache=run.prefix_caching,
        async_scheduling=run.async_scheduling,
        reserve_prompt=True,
    )


def replay(run: Run, model: EngineModel, prefix_share: float) -> Log:
    """The same requests with simulated stamps. Raises UserError for one that cannot fit."""
    spec, costs = engine_spec(run, model), TableCost(model.tables)
    ranks = [Rank(Engine(spec, costs), deque()) for _ in range(run.dp)]
    if model.together is not None:
        groups = [Group(ranks, model.together)]
    else:
        groups = [Group([rank], None) for rank in ranks]
    return _Clock(run.log, groups, run.block_size, prefix_share).run()


class _Clock:
    """Arrivals and step ends in order of time; arrivals first."""

    def __init__(self, log: Log, groups: list[Group], block_size: int, share: float) -> None:
        self._log = log
        self._groups = groups
        self._ranks = [rank for group in groups for rank in group.ranks]
        self._requests = _requests(log, block_size, share)
        self._queued = np.full(len(log), math.nan)
        self._first = np.full(len(log), math.nan)
        self._last = np.full(len(log), math.nan)

    def run(self) -> Log:
        arrived = 0
        while True:
            due_s = self._log.arrival_s[arrived] if arrived < len(self._log) else math.inf
            now_s = min(due_s, *(group.end_s for group in self._groups))
            if math.isinf(now_s):
                break
            while arrived < len(self._log) and self._log.arrival_s[arrived] <= now_s:
                min(self._ranks, key=Rank.score).inbox.append(arrived)
                arrived += 1
            for group in self._groups:
                if group.end_s <= now_s:
                    self._deliver(group.finish(now_s))
                if math.isinf(group.end_s):
                    self._take_in(group, now_s)
                    group.begin(now_s)
        return replace(self._log, queued_s=self._queued, first_s=self._first, last_s=self._last)

    def _take_in(self, group: Group, now_s: float) -> None:
        for rank in group.ranks:
            while rank.inbox:
                index = rank.inbox.popleft()
                self._queued[index] = now_s
                try:
                    rank.engine.add(self._requests[index], now_s)
                except ValueError as error:
                    raise UserError(f"request {index} of the log: {error}") from None

    def _deliver(self, tokens: list[tuple[str, float]]) -> None:
        for request_id, now_s in tokens:
            index = int(request_id)
            if math.isnan(self._first[index]):
                self._first[index] = now_s
            self._last[index] = now_s


def _requests(log: Log, block_size: int, share: float) -> list[EngineRequest]:
    blocks = contents(log.prompt_tokens.tolist(), block_size, share)
    lengths = zip(log.prompt_tokens.tolist(), log.output_tokens.tolist(), blocks, strict=True)
    return [EngineRequest(str(i), *each) for i, each in enumerate(lengths)]


def contents(prompts: Seq[int], block_size: int, share: float) -> list[tuple[int, ...]]:
    """Block contents of prompts in order of arrival, of which `share` of all tokens repeats.

    The prompts are turns of conversations, and a turn repeats the prompt of an earlier one; the
    log does not say which. Whenever enough tokens are owed, a prompt begins with the longest
    earlier prompt that fits. What of that is found depends on the engine's cache.
    """
    made: list[tuple[int, ...]] = []
    owed = 0.0
    for index, prompt in enumerate(prompts):
        owed += share * prompt
        most = min(int(owed), prompt - 1) // block_size
        whole = (made[i][: prompts[i] // block_size] for i in range(index))
        again = max((blocks for blocks in whole if len(blocks) <= most), key=len, default=())
        owed -= len(again) * block_size
        first = (index + 1) << 32
        own = range(first, first + -(-prompt // block_size) - len(again))
        made.append((*again, *own))
    return made
