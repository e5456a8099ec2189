# SPDX-License-Identifier: Apache-2.0
"""What is simulated: a cluster, and how its router is set. Frozen values.

Owns: the values and their checks. Does not own: workloads (../workloads), engines' own terms
(controller.engine.EngineSpec), cost tables (controller.costs.tables).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from controller.costs.tables import StepTables
from controller.engine.values import EngineSpec
from controller.errors import UserError
from controller.routing.kernels.orderings import MOST_WINDOW, ORDERINGS
from controller.simulation.cluster.events import ClusterEvent
from controller.simulation.cluster.placement import PLACEMENTS
from controller.types import RoutingParams, Slo

BINDINGS = {"least_context": 0, "round_robin": 1}
"""How a session without a decode worker gets one."""


TRANSFERS = {"recompute": 0, "history_read": 1}
"""What a prefill worker does about history that only the decode worker holds.

`recompute`: computes it, as stock vLLM does: a remote prefill there has no handle for KV that
lies on a decode worker, only its own prefix cache. `history_read` (AMPD): reads it over the link
before it computes the increment. Back goes, in both, what the decode worker's prefix cache lacks.
"""


class SimulationError(UserError):
    """A cluster or options that cannot be simulated; str() is one line."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker: indices into the cluster's `engines` and `costs`."""

    engine: int = 0
    costs: int = 0
    present: bool = True
    """False: it is not there before it joins (events.py)."""


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSpec:
    """Workers and links. Without prefill workers every prefill is local (co-location).

    Workers are numbered: prefill workers first, then decode workers.
    """

    engines: tuple[EngineSpec, ...]
    costs: tuple[StepTables, ...]
    prefill: tuple[Worker, ...]
    decode: tuple[Worker, ...]
    contention: bool = True
    """Whether transfers of one link wait for each other (links.py); False: each is alone."""
    events: tuple[ClusterEvent, ...] = ()
    """Failures and scale events; what happens at one time happens in the order given."""

    def __post_init__(self) -> None:
        if not self.decode:
            raise SimulationError("cluster: no decode worker; give at least one")
        for worker in (*self.prefill, *self.decode):
            if not 0 <= worker.engine < len(self.engines):
                raise SimulationError(f"cluster: a worker names engine {worker.engine}")
            if not 0 <= worker.costs < len(self.costs):
                raise SimulationError(f"cluster: a worker names cost table {worker.costs}")
        check_events(self.events, len(self.workers))

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All workers by number."""
        return (*self.prefill, *self.decode)


def code(name: str, value: str, known: Mapping[str, int]) -> int:
    """The number of a named rule; SimulationError if there is none of that name."""
    if value not in known:
        raise SimulationError(f"{name} is {value!r}; known: {', '.join(known)}")
    return known[value]


def check_events(events: Iterable[ClusterEvent], workers: int) -> None:
    """SimulationError for the first event that a cluster of so many workers cannot have."""
    for event in events:
        problem = event.problem(workers)
        if problem:
            raise SimulationError(f"cluster: event {event.kind.value!r} {problem}")


def uniform_cluster(
    prefill: int, decode: int, engine: EngineSpec, costs: StepTables, contention: bool = True
) -> ClusterSpec:
    """`prefill` and `decode` workers that are all alike."""
    return ClusterSpec((engine,), (costs,), (Worker(),) * prefill, (Worker(),) * decode, contention)


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The router's rules and what it does not know."""

    placement: str = "always_remote"
    ordering: str = "fifo"
    binding: str = "least_context"
    slo: Slo = field(default_factory=lambda: Slo(ttft_ms=1500.0, itl_ms=60.0))
    params: RoutingParams = field(default_factory=RoutingParams)
    transfer: str = "recompute"
    """One of TRANSFERS."""
    in_flight_steps: int = 2
    """Full steps that the router keeps in flight at a prefill worker (routing/inflight.py)."""
    ordering_window: int = 3
    """Tasks that an ordering looks at: see routing.kernels.orderings."""
    late_share: float = 0.0
    """Share of prefill tokens kept for work that is late already."""
    max_wait_s: float = math.inf
    """What has waited this long goes first."""
    passed_cap: int = 0
    """How often a waiting prefill may be passed by later ones; 0: any number."""
    reject: bool = False
    """Early rejection: what cannot be in time any more is refused."""
    local_chunk_tokens: int = 0
    """Most prompt tokens of a local prefill in one step, whatever rule placed it (`toll` reads
    this one, not that of its own parameters); 0: what the engine's budget allows."""
    seed: int = 0
    """Of the rules' own random numbers and of the cost error."""
    report_delay_s: float = 0.0
    """Age of what the router knows of decode workers: the step times in their windowed ITL, and
    their batch and context, reported when the batch changes (report.py). Not delayed: the router's
    own books (queues, prefills in flight, windowed TTFT, who is bound where), and prefix hits,
    which it looks up where the cache is."""
    cost_error: float = 0.0
    """Standard deviation of the logarithm of a request's error factor on predicted times."""
    cost_bias: float = 1.0
    """Median of that factor."""
    migration_limit: int = 0
    """How often a stream may go on elsewhere when its decode worker fails (failures.py)."""
    until_s: float = math.inf
    """End of the run; what has not ended by then is unfinished."""
    gaps: bool = True
    """Keep what is needed for the gaps between tokens (about 150 bytes a request)."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("placement", self.placement, PLACEMENTS),
            ("ordering", self.ordering, ORDERINGS),
            ("binding", self.binding, BINDINGS),
            ("transfer", self.transfer, TRANSFERS),
        ):
            code(name, value, known)
        if self.report_delay_s < 0 or self.cost_error < 0 or self.cost_bias <= 0:
            raise SimulationError(
                "report_delay_s and cost_error must be at least 0, cost_bias above 0"
            )
        if self.local_chunk_tokens < 0:
            raise SimulationError("local_chunk_tokens must be at least 0")
        if self.in_flight_steps < 1:
            raise SimulationError("in_flight_steps must be at least 1")
        if self.migration_limit < 0:
            raise SimulationError("migration_limit must be at least 0")
        self._check_ordering()

    def _check_ordering(self) -> None:
        if not 1 <= self.ordering_window <= MOST_WINDOW and self.ordering == "algorithm_2":
            raise SimulationError(f"ordering_window of algorithm_2 must be 1 to {MOST_WINDOW}")
        if self.ordering_window < 1:
            raise SimulationError("ordering_window must be at least 1")
        if self.passed_cap < 0:
            raise SimulationError("passed_cap must be at least 0")
        if not 0 <= self.late_share < 1:
            raise SimulationError("late_share must be at least 0 and below 1")
        if not self.max_wait_s > 0:
            raise SimulationError("max_wait_s must be above 0")
        toll = self.params.toll
        if not toll.expected_error >= 0 or not toll.itl_guard > 0:
            raise SimulationError("expected_error must be at least 0, itl_guard above 0")
        if not 0 <= toll.least_chance <= 1:
            raise SimulationError("least_chance must be from 0 to 1")


class Status(int, Enum):
    """What became of a request. The numbers are those of the kernels."""

    SERVED = 1
    REJECTED = 2
    """It could not fit its workers even alone, or there was no decode worker."""
    FAILED = 3
    """A worker failed under it, and it could not go on elsewhere."""
    UNFINISHED = 4
    """Arrived before the end of the run, not ended by then."""
    NEVER_ISSUED = 5
    """Follows a request that did not end well, or not before the end of the run."""
