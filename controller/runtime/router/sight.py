# SPDX-License-Identifier: Apache-2.0
"""What a placement rule is shown for one request, and what a local prefill adds to the books.

Owns: putting the queues' and the decode workers' columns together, which decode worker counts as
bound. Does not own: the columns (queues.py, decode_state.py), who may be chosen (core.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.costs.model import TableCost
from controller.runtime.router.decode_state import DecodeState, expected_binding
from controller.runtime.router.queues import PrefillQueues
from controller.types import ClusterView, Decision, DecodePool, PrefillTask


@dataclass(frozen=True, slots=True)
class DecodeSide:
    """What an attachment says of the decode side of a request."""

    worker_id: int | None
    """The worker that will stream; None: the frontend will choose one."""
    fresh: bool
    """Nothing ties the request to it: a local prefill may name another one."""
    held: Mapping[int, int]
    """Tokens of its prompt whose KV decode workers have, by id."""


class Sight:
    """The router's columns as views of one instant."""

    def __init__(self, queues: PrefillQueues, decode: DecodeState, costs: TableCost) -> None:
        self._queues = queues
        self._decode = decode
        self._costs = costs

    def view(
        self,
        task: PrefillTask,
        side: DecodeSide,
        prefill_ids: tuple[int, ...],
        cached: Mapping[int, int],
        now_s: float,
    ) -> ClusterView:
        """The live prefill workers `prefill_ids` with `cached` tokens, all decode workers."""
        prefill = self._queues.view(prefill_ids, cached, now_s)
        decode = self._decode.view(now_s, side.held)
        bound = _index(decode, side.worker_id)
        if bound is not None:
            decode.cached_tokens[bound] = task.history_tokens
            if side.worker_id is not None:  # its own booking is no load to itself
                decode.held_tokens[bound] -= task.prompt_tokens
        return ClusterView(now_s, prefill, decode, bound, side.fresh and bound is not None)

    def book_local(
        self, task: PrefillTask, side: DecodeSide, decision: Decision, now_s: float
    ) -> None:
        """A local prefill goes to where it will most likely run."""
        pool = self._decode.view(now_s, side.held)
        index, history = _index(pool, side.worker_id), task.history_tokens
        if decision.decode_id in pool.worker_ids:
            index = pool.worker_ids.index(decision.decode_id)
            history = min(pool.cached_tokens.item(index), task.prompt_tokens - 1)
        if index is None:
            return
        predicted_s = decision.local_s
        if predicted_s is None:
            predicted_s = self._costs.prefill_s(history, task.prompt_tokens - history)
        self._decode.local_sent(pool.worker_ids[index], task.request_id, predicted_s, now_s)


def _index(pool: DecodePool, bound: int | None) -> int | None:
    """Index of the bound decode worker; the frontend's likely choice when it is not ours."""
    if bound in pool.worker_ids:
        return pool.worker_ids.index(bound)
    return expected_binding(pool)
