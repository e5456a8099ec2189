# SPDX-License-Identifier: Apache-2.0
"""What a worker tells the rest of the deployment: ForwardPassMetrics and KV cache events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.engine import CacheEvent
from controller.runtime.emulated.worker import StepRecord


class StepPublisher:
    """One ForwardPassMetrics message a step; times are emulated seconds."""

    def __init__(self, endpoint: Any, instance_id: int) -> None:
        from dynamo.llm import FpmDirectPublisher

        self._publisher = FpmDirectPublisher(endpoint, worker_id=str(instance_id))

    def publish(self, record: StepRecord) -> None:
        """Send one step."""
        step, load = record.step, record.load
        self._publisher.publish(
            dp_rank=0,
            scheduled_num_prefill_requests=step.prefill_requests,
            scheduled_sum_prefill_tokens=step.prefill_tokens,
            scheduled_sum_prefill_kv_tokens=step.prefill_kv_tokens,
            scheduled_num_decode_requests=step.decode_requests,
            scheduled_sum_decode_kv_tokens=step.decode_kv_tokens,
            queued_num_prefill_requests=load.waiting_requests,
            queued_sum_prefill_tokens=load.waiting_tokens,
            queued_num_decode_requests=load.preempted_requests,
            queued_sum_decode_kv_tokens=load.preempted_kv_tokens,
            wall_time_secs=step.duration_s,
        )


class CachePublisher:
    """KV stored and removed events, with the token ids that Dynamo's index hashes itself."""

    def __init__(self, endpoint: Any, instance_id: int, block_size: int) -> None:
        from dynamo.llm import KvEventPublisher

        self._publisher = KvEventPublisher(endpoint, instance_id, block_size)
        self._block_size = block_size
        self._prompts: dict[str, Sequence[int]] = {}

    def note_prompt(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Remember a prompt while its blocks are being stored."""
        self._prompts[request_id] = token_ids

    def forget_prompt(self, request_id: str) -> None:
        """The request has ended."""
        self._prompts.pop(request_id, None)

    def publish(self, events: list[CacheEvent]) -> None:
        """Send the events of one step, in order."""
        batch: list[dict[str, Any]] = []
        for event in events:
            if not event.stored:
                batch.append({"type": "removed", "block_hashes": [event.content]})
                continue
            token_ids = self._prompts.get(event.request_id or "")
            if token_ids is None:
                continue
            start = event.index * self._block_size
            batch.append(
                {
                    "type": "stored",
                    "token_ids": list(token_ids[start : start + self._block_size]),
                    "num_block_tokens": [self._block_size],
                    "block_hashes": [event.content],
                    "parent_hash": event.parent,
                }
            )
        if batch:
            self._publisher.publish_batch(batch)
