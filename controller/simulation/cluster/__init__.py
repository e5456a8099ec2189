# SPDX-License-Identifier: Apache-2.0
"""The fast simulator of a serving cluster: the engine law on a virtual clock, compiled.

    cluster = uniform_cluster(2, 2, engine_spec, tables)
    result = simulate(workload, cluster, SimOptions("least_ttft"))

Owns: virtual time, engines, router queues, links, and what became of every request. Does not own:
workloads (../workloads), cost tables (controller.costs), the routing rules
(controller.routing.kernels: the live router's own functions). `controller.engine` is the truth
about an engine: the tests run both, step by step there, and compare request by request.

**State** (state.py). One record a request, one a worker, one a run of KV blocks, linked by index;
heaps and tables beside them. Kernels get all of it as one pointer (compiled.py). Pools that grow
are made larger by Python between two events (simulate.py), so a kernel never allocates.

**Events** (loop.py, heaps.py). Each worker has at most one event to come: the end of the steps that
it has planned, or the instant at which it must look again. Workers stand in a heap by that
instant. Arrivals come from a sorted column, followers from a second heap. Instants are whole
nanoseconds (clock.py), so what coincides in exact arithmetic coincides here.

**Advance** (compose.py, steps.py, decodes.py). A step with prompt tokens is composed and ended by
itself. Decode steps of one batch are planned as one run: to the next last token, knot of the cost
table, shortage of blocks, or newcomer. Their j-th takes first + slope*(j-1), so n of them take
n*first + slope*n(n-1)/2. An arrival in the middle cuts the run at the next step end. Nothing is
kept per running token: contexts are sums, last tokens a heap of step numbers, block needs counts
of decodes by residue. Steps that depend on the order of the running requests, or lack blocks, are
composed one by one (explicit.py). So the cost of a run grows with events, not with tokens.

**Blocks** (blocks.py, prefix.py, prefixes.py). Free list, reference counts and prefix table are the
engine's, but over runs of blocks: the text that prompts share is cut into segments before the run,
and a run of a segment that came together, is used together and leaves together is one record.

**Laziness.** Nothing is done for a worker that has no event. What others ask about it is answered
from sums and the time they hold for: the router's books (books.py), the last report of a decode
worker, made when its batch changed (report.py). Pulls that ended and pins that were released wait
in time order until their worker's next event (links.py); only a worker that could use them is
woken. Blocks for growing decodes are taken when the run ends or somebody looks into the cache.

**Tokens.** Times of single tokens are not kept: logged runs of steps and the stints of each request
give every gap exactly, afterwards (gaps.py).
"""

from controller.simulation.cluster.events import ClusterEvent, EventKind
from controller.simulation.cluster.observe import Observation
from controller.simulation.cluster.result import SimResult
from controller.simulation.cluster.simulate import Simulation, simulate
from controller.simulation.cluster.spec import (
    ClusterSpec,
    SimOptions,
    SimulationError,
    Status,
    Worker,
    uniform_cluster,
)

__all__ = [
    "ClusterEvent",
    "ClusterSpec",
    "EventKind",
    "Observation",
    "SimOptions",
    "SimResult",
    "Simulation",
    "SimulationError",
    "Status",
    "Worker",
    "simulate",
    "uniform_cluster",
]
