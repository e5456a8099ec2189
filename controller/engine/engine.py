# SPDX-License-Identifier: Apache-2.0
"""One engine as its driver sees it.

Owns: the live requests by id, the running step and its effects, hand-over leases. Does not own:
clocks, transfers, token ids; the driver has them. Who takes part in a step is scheduler.py's.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from controller.costs.model import CostModel
from controller.engine.batch import Batch
from controller.engine.kv import KvManager
from controller.engine.leases import Leases
from controller.engine.scheduler import Scheduler
from controller.engine.sequence import Sequence, SequenceState
from controller.engine.values import (
    CacheEvent,
    DuplicateRequest,
    EngineLoad,
    EngineRequest,
    EngineSpec,
    FinishReason,
    Output,
    Pull,
    RequestTooLarge,
    Step,
)


class Engine:
    """The law of one worker (see the package). Not thread-safe; every call returns at once.

    A driver loops: `expire`, `begin_step`, perform `take_pulls` (also when no step began), wait
    `duration_s`, `finish_step`. When `begin_step` returns None, only `add`, `cancel`,
    `finish_pull`, `release` or `expire` (at `next_wakeup_s`) can change that. All calls but
    those of the step itself are allowed at any time. What `take_pulls` and `take_cache_events`
    return is kept until taken, so call them regularly. Every change carries `now_s`, also
    where this version of the law does not look at it.
    """

    def __init__(self, spec: EngineSpec, costs: CostModel) -> None:
        self._spec = spec
        self._costs = costs
        self._kv = KvManager(spec)
        self._scheduler = Scheduler(spec, costs, self._kv)
        self._leases = Leases()
        self._live: dict[str, Sequence] = {}
        self._arrivals = 0
        self._batch: Batch | None = None
        self._ahead: Batch | None = None
        # Prompt blocks of what the last step finished: nothing reuses them before the next.
        self._just_finished: dict[str, list[int]] = {}

    def add(self, request: EngineRequest, now_s: float) -> None:
        """Enqueue a request; a running step does not see it.

        Raises RequestTooLarge if prompt and output cannot fit even alone
        (`EngineSpec.most_tokens`).
        """
        request_id = request.request_id
        if request_id in self._live or request_id in self._leases:
            raise DuplicateRequest(f"request {request_id!r} is live or pinned")
        self._check(request)
        sequence = Sequence(request, self._arrivals)
        self._arrivals += 1
        self._live[request_id] = sequence
        self._scheduler.waiting.push(sequence)

    def cancel(self, request_id: str, now_s: float) -> bool:
        """Drop a waiting, pulling or running request and free its blocks at once.

        False for an unknown id, and for a pinned one: only its decode side may let go of it
        (`release`). Whoever cancels a decode leg tells the source itself; a pull of it that was
        not taken yet is withdrawn.
        """
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        self._scheduler.remove(sequence)
        return True

    def release(self, request_id: str, now_s: float) -> bool:
        """The decode side has the KV: free the pinned blocks. False if the lease is gone."""
        if not self._leases.holds(request_id, now_s):
            return False
        self._kv.free(self._leases.drop(request_id))
        return True

    def renew(self, request_id: str, now_s: float) -> bool:
        """Restart a lease from now. False if it is gone."""
        if not self._leases.holds(request_id, now_s):
            return False
        self._leases.renew(request_id, now_s + self._spec.kv_lease_s)
        return True

    def pinned_blocks(self, request_id: str) -> tuple[int, ...] | None:
        """Block ids of a pinned prompt in order; None if it is not pinned (any more)."""
        return self._leases.blocks(request_id)

    def block_contents(self, block_ids: Seq[int]) -> tuple[int, ...]:
        """What blocks hold now, 0 for nothing.

        Nobody checks who has them: a late reader gets the content of whoever reuses them,
        which is how wrong tokens after a lost lease come about.
        """
        return self._kv.contents(block_ids)

    def prompt_contents(self, request_id: str) -> tuple[int, ...]:
        """What the blocks of a request's prompt really hold, as many as it has so far.

        For live and pinned requests, and until the next `begin_step` for those that the last
        `finish_step` finished. KeyError otherwise.
        """
        sequence = self._live.get(request_id)
        if sequence is not None:
            return self._kv.contents(_prompt_blocks(sequence))
        pinned = self._leases.blocks(request_id)
        return self._kv.contents(self._just_finished[request_id] if pinned is None else pinned)

    def cached_tokens(self, contents: Seq[int], prompt_tokens: int) -> int:
        """Leading tokens of a prompt that the prefix cache holds now, as an admission would count
        them: full blocks, and never the whole prompt. Takes nothing."""
        return self._kv.count_prefix(contents, prompt_tokens - 1)

    def take_pulls(self) -> list[Pull]:
        """Pulls admitted since the last call; the driver performs them and reports back."""
        return self._scheduler.take_pulls()

    def finish_pull(self, request_id: str, contents: Seq[int] | None, now_s: float) -> list[Output]:
        """End a pull: `contents` as read at the source, one per pulled block, in prompt order.

        The request joins the next step with one prompt token left. None means that the pull
        failed: the request ends with KV_LOAD_FAILED. An id that is not pulling is ignored.
        """
        sequence = self._live.get(request_id)
        if sequence is None or sequence.state is not SequenceState.PULLING:
            return []
        if contents is None:
            del self._live[request_id]
            self._scheduler.remove(sequence)
            reason = FinishReason.KV_LOAD_FAILED
            return [Output(request_id, 0, reason, sequence.cached_tokens or 0)]
        if len(contents) != sequence.pull_blocks:
            raise ValueError(
                f"pull of {request_id!r}: {len(contents)} contents for "
                f"{sequence.pull_blocks} blocks"
            )
        self._kv.settle_pull(sequence, contents)
        self._scheduler.finish_pull(sequence)
        return []

    def begin_step(self, now_s: float) -> Step | None:
        """Compose and start the next step; None when nothing can run."""
        if self._batch is not None:
            raise RuntimeError("a step is running")
        self._just_finished.clear()
        ahead, self._ahead = self._ahead, None
        batch = ahead or self._scheduler.compose()
        if not batch:
            return None
        self._batch = batch
        if self._spec.async_scheduling:
            self._advance(batch)
            self._ahead = self._scheduler.compose()
        return batch.step(now_s, self._costs, self._spec.charge_prefill)

    def finish_step(self, now_s: float) -> list[Output]:
        """End the running step: the tokens of each request that got some."""
        if self._batch is None:
            raise RuntimeError("no step is running")
        batch, self._batch = self._batch, None
        if not self._spec.async_scheduling:
            self._advance(batch)
        # Whoever was cancelled meanwhile is GONE. Composing ahead may have preempted somebody: that
        # one is WAITING, and its token is computed again.
        decodes = [s for s in batch.decodes if s.state is SequenceState.RUNNING]
        for sequence in decodes:
            if not sequence.generated:  # a decode leg has just computed its last prompt token
                self._kv.settle(sequence)
        outputs = [self._deliver(sequence, now_s) for sequence in decodes]
        for sequence, _tokens in batch.prefills:
            if sequence.state is not SequenceState.RUNNING:
                continue
            self._kv.settle(sequence)
            if sequence.computed == sequence.target:
                outputs.append(self._deliver(sequence, now_s))
        if self._just_finished:
            self._scheduler.running.sweep()
        return outputs

    def next_wakeup_s(self) -> float | None:
        """When the next lease ends; None without leases."""
        return self._leases.earliest_s()

    def expire(self, now_s: float) -> list[str]:
        """Free the pinned blocks whose lease has ended; returns their requests."""
        ended = self._leases.ended(now_s)
        for request_id in ended:
            self._kv.free(self._leases.drop(request_id))
        return ended

    def take_cache_events(self) -> list[CacheEvent]:
        """Changes of the prefix cache since the last call, in order."""
        return self._kv.take_events()

    def load(self) -> EngineLoad:
        """A snapshot; every figure is kept up to date, none is summed here."""
        scheduler, waiting, running = (
            self._scheduler,
            self._scheduler.waiting,
            self._scheduler.running,
        )
        return EngineLoad(
            waiting_requests=waiting.new_requests,
            waiting_tokens=waiting.new_tokens,
            running_requests=len(running),
            decoding_requests=running.decodes,
            decode_kv_tokens=running.decode_kv_tokens,
            preempted_requests=waiting.preempted_requests,
            preempted_kv_tokens=waiting.preempted_tokens,
            pulling_requests=scheduler.pulling,
            pinned_requests=len(self._leases),
            pinned_blocks=self._leases.distinct_blocks,
            free_blocks=self._kv.free_blocks,
            prefix_hit_tokens_total=scheduler.hit_tokens,
            prefix_query_tokens_total=scheduler.query_tokens,
            preemptions_total=scheduler.preemptions,
        )

    def _check(self, request: EngineRequest) -> None:
        name = f"request {request.request_id!r}"
        if request.prompt_tokens < 1 or request.max_output_tokens < 1:
            raise ValueError(f"{name}: prompt_tokens and max_output_tokens must be at least 1")
        if any(tokens < 1 for tokens in request.chunks):
            raise ValueError(f"{name}: chunks must be at least 1")
        if request.history_tokens and request.pull_kv:
            raise ValueError(f"{name}: a decode leg that pulls reads no history")
        if not 0 <= request.history_tokens < request.prompt_tokens:
            raise ValueError(f"{name}: history_tokens must be from 0 to below prompt_tokens")
        blocks = self._kv.blocks_for(request.prompt_tokens)
        if len(request.contents) != blocks:
            raise ValueError(f"{name}: {len(request.contents)} contents for {blocks} blocks")
        tokens = request.prompt_tokens  # of a prefill leg
        if not request.hold_kv:
            tokens = self._spec.most_tokens(tokens, request.max_output_tokens)
        need = self._kv.blocks_for(tokens)
        if need > self._spec.num_blocks:
            raise RequestTooLarge(
                f"{name}: needs {need} KV blocks, the engine has {self._spec.num_blocks}"
            )

    def _advance(self, batch: Batch) -> None:
        """Count as computed what the batch computes."""
        running = self._scheduler.running
        if batch.decodes:
            self._scheduler.steps += 1
        decodes = [s for s in batch.decodes if s.state is SequenceState.RUNNING]
        running.advance(decodes, batch.emitted)
        for sequence, tokens in batch.prefills:
            if sequence.state is SequenceState.RUNNING:
                sequence.computed += tokens
                if sequence.computed == sequence.target:
                    sequence.in_flight = 1
                    if sequence.needs_decodes:
                        running.start_decoding(sequence)

    def _deliver(self, sequence: Sequence, now_s: float) -> Output:
        """The next tokens of a request that has computed all it knows."""
        tokens = min(sequence.in_flight, sequence.limit - sequence.generated)
        sequence.in_flight = 0
        sequence.generated += tokens
        sequence.target += tokens
        finish = None
        if sequence.generated >= sequence.limit:
            finish = FinishReason.LENGTH
            self._finish(sequence, now_s)
        return Output(sequence.request.request_id, tokens, finish, sequence.cached_tokens or 0)

    def _finish(self, sequence: Sequence, now_s: float) -> None:
        request_id = sequence.request.request_id
        del self._live[request_id]
        self._scheduler.running.leave(sequence, SequenceState.GONE)
        self._just_finished[request_id] = _prompt_blocks(sequence)
        if sequence.request.hold_kv:
            expires_s = now_s + self._spec.kv_lease_s
            self._leases.pin(request_id, tuple(sequence.blocks), expires_s)
        else:
            self._kv.free(sequence.blocks)


def _prompt_blocks(sequence: Sequence) -> list[int]:
    return sequence.blocks[: len(sequence.request.contents)]
