# SPDX-License-Identifier: Apache-2.0
"""One prefill's place in the queues, and one worker's queue: what `queues.py` keeps books of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from controller.estimation.windows import MeanWindow
from controller.routing.fairness import FairShare
from controller.routing.units import worker_of

Terms = Callable[[int], tuple[int, float]]
"""(uncached tokens, predicted seconds) of a prefill at a worker."""


class WorkerGoneError(Exception):
    """The worker left while a prefill waited for it or ran on it."""


class TooLateError(Exception):
    """Early rejection: the prefill cannot be in time any more."""


class Ticket:
    """One prefill's place at one worker; the worker may change until it is granted."""

    __slots__ = (
        "asked_by",
        "granted",
        "joined_s",
        "moved",
        "only",
        "predicted_s",
        "prompt_tokens",
        "row",
        "tag_s",
        "terms",
        "uncached_tokens",
        "worker_id",
    )

    def __init__(
        self,
        worker_id: int,
        row: int,
        joined_s: float,
        uncached_tokens: int,
        predicted_s: float,
        prompt_tokens: int,
        terms: Terms | None,
        only: frozenset[int] | None,
        asked_by: str | None,
    ) -> None:
        self.worker_id = worker_id
        self.row = row
        self.joined_s = joined_s
        self.uncached_tokens = uncached_tokens
        """What its worker has to compute, in `predicted_s` seconds."""
        self.predicted_s = predicted_s
        self.prompt_tokens = prompt_tokens
        self.terms = terms
        """What it would be elsewhere; None: it stays where it was placed."""
        self.only = only
        """Workers that may serve it; None: all."""
        self.asked_by = asked_by
        """The replica whose request it is; None: it is ours."""
        self.moved = 0
        self.tag_s: float | None = None
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def may_go_to(self, worker_id: int) -> bool:
        """Whether another worker could serve it."""
        return self.terms is not None and (self.only is None or worker_of(worker_id) in self.only)


class Lane:
    """One worker's queue; with `owner`, another replica serves it and is asked for grants."""

    def __init__(
        self, number: int, window_s: float, tokens: int, weights: Mapping[str, float]
    ) -> None:
        self.number = number
        self.tickets: dict[int, Ticket] = {}  # by row: waiting and in flight
        self.mirrored: list[int] = []  # rows of other replicas' work
        self.ttft = MeanWindow(window_s)
        self.bound_tokens = tokens
        self.shares = FairShare(weights) if weights else None
        self.owner: str | None = None
