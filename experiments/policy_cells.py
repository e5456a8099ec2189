# SPDX-License-Identifier: Apache-2.0
"""What compare_policies.py compares: workloads, deployments, rules, and one simulated cell.

Owns: the protocol of one run. Does not own: which runs are made, statistics, files.

No gifts: output lengths are unknown to every rule, predicted times carry 20 % error, state reports
are 100 ms old. Load goes on for `TAIL_S` after the cohort's last arrival; whoever has not ended
by then, or was never issued because a round before it failed, is a miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.intervals import half_width
from controller.costs.tables import StepTables
from controller.engine.values import EngineSpec
from controller.runtime.files import read_text
from controller.runtime.resources import read_profile
from controller.simulation.cluster.result import SimResult
from controller.simulation.cluster.simulate import simulate
from controller.simulation.cluster.spec import ClusterSpec, SimOptions, Worker
from controller.simulation.lengths import Lengths
from controller.simulation.report.summary import Cohort, SimSummary, summarize
from controller.simulation.workloads.agents import AgentTrace, agent_sessions
from controller.simulation.workloads.arrivals import GapLaw, arrival_times
from controller.simulation.workloads.reading import parse_workload
from controller.simulation.workloads.rows import Heads, single_rounds
from controller.simulation.workloads.shaping import scale_rate
from controller.simulation.workloads.workload import Workload
from controller.types import IntArray, Slo

WARM_S = 60.0
COHORT_S = 240.0
TAIL_S = 60.0
PROFILE = "llama31_70b_tp4_h100"
UNBOUNDED = 1_000_000
COST_ERROR = 0.2
REPORT_DELAY_S = 0.1


@dataclass(frozen=True, slots=True)
class Scene:
    """A workload and its SLO. `make(rate, seed)`: `rate` is sessions or requests a second."""

    name: str
    slo: Slo
    make: Callable[[float, int], Workload]
    start_rate: float
    """Where the search for AMPD's 60 % begins."""
    stretch: float = 1.0
    """Warm-up, cohort and tail are this much longer: a tail must outlast a session."""

    @property
    def warm_s(self) -> float:
        """Arrivals before that are not counted."""
        return WARM_S * self.stretch

    @property
    def cohort(self) -> Cohort:
        """The arrivals that are counted."""
        return Cohort(self.warm_s, self.warm_s + COHORT_S * self.stretch)

    @property
    def end_s(self) -> float:
        """Until then load goes on; who has not ended by then is a miss."""
        return _span_s(self.stretch)


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One combination of the factorial."""

    placement: str
    ordering: str
    reject: bool = False

    @property
    def name(self) -> str:
        return f"{self.placement}+{self.ordering}" + ("+reject" if self.reject else "")


@dataclass(frozen=True, slots=True, order=True)
class Deployment:
    """Four workers of four GPUs: how many prefill, and the decode workers' token budget a step."""

    prefill: int = 2
    decode_budget: int = 2048

    @property
    def name(self) -> str:
        return f"{self.prefill}P{4 - self.prefill}D-{self.decode_budget}"


PLACEMENTS = (
    "always_remote",
    "always_local",
    "round_robin",
    "kv_cost",
    "conditional",
    "ampd",
    "least_ttft",
    "deflect",
    "toll",
    "batch",
)
OURS = ("toll", "batch", "least_ttft")
ORDERINGS = (
    "fifo",
    "shortest",
    "algorithm_2",
    "hopeless_last",
    "earliest_deadline",
    "moore_hodgson",
)
SORTING = ORDERINGS[3:]
"""Only these tell what is late, so only these can reject it."""
DEFAULT = Rule("toll", "moore_hodgson")
"""Declared before the runs."""
AMPD = Rule("ampd", "algorithm_2")
PUBLISHED = (
    AMPD,
    Rule("deflect", "fifo"),
    Rule("kv_cost", "fifo"),
    Rule("kv_cost", "shortest"),
    Rule("conditional", "fifo"),
    Rule("always_remote", "fifo"),
    Rule("always_local", "fifo"),
    Rule("round_robin", "fifo"),
)
"""Each rule in its published form, and the plain baselines."""
DEPLOYMENTS = tuple(Deployment(p, b) for p in (1, 2, 3) for b in (512, 2048))
_STOCK = ("kv_cost", "conditional", "round_robin")
_LOCAL_CHUNK = {"toll": 256, "batch": 256}


def all_rules() -> tuple[Rule, ...]:
    """The whole factorial."""
    return tuple(
        Rule(p, o, reject)
        for p in PLACEMENTS
        for o in ORDERINGS
        for reject in ((False, True) if o in SORTING else (False,))
    )


@cache
def tables() -> StepTables:
    """The step times of PROFILE."""
    return read_profile(PROFILE).tables()


def cluster(deployment: Deployment) -> ClusterSpec:
    """Four workers of PROFILE, some of them for prefill."""
    prefill = EngineSpec(
        block_size=16, num_blocks=24_000, max_num_batched_tokens=8192, max_num_seqs=256
    )
    decode = replace(prefill, max_num_batched_tokens=deployment.decode_budget)
    count = deployment.prefill
    return ClusterSpec(
        (prefill, decode), (tables(),), (Worker(0),) * count, (Worker(1),) * (4 - count)
    )


def options(rule: Rule, slo: Slo, seed: int, end_s: float, **changes: Any) -> SimOptions:
    """Rule and information as the protocol has it."""
    stock = rule.placement in _STOCK and rule.ordering == "fifo"
    values: dict[str, Any] = {
        "placement": rule.placement,
        "ordering": rule.ordering,
        "ordering_window": 256 if rule.ordering == "moore_hodgson" else 3,
        "reject": rule.reject,
        "slo": slo,
        "in_flight_steps": UNBOUNDED if stock else 2,
        "local_chunk_tokens": _LOCAL_CHUNK.get(rule.placement, 0),
        "seed": seed,
        "report_delay_s": REPORT_DELAY_S,
        "cost_error": COST_ERROR,
        "until_s": end_s,
    }
    return SimOptions(**(values | changes))


def run_cell(
    scene: Scene, rate: float, rule: Rule, deployment: Deployment, seed: int, **changes: Any
) -> tuple[SimSummary, float]:
    """(summary of the cohort, slope of the backlog in requests a second)."""
    workload = scene.make(rate, seed)
    spec = cluster(deployment)
    result = simulate(workload, spec, options(rule, scene.slo, seed, scene.end_s, **changes))
    return summarize(result, spec, scene.cohort), backlog_slope(result, scene.cohort)


def backlog_slope(result: SimResult, cohort: Cohort) -> float:
    """Requests without a first token, over the cohort's time: slope of a straight line."""
    at_s = np.arange(cohort.start_s, cohort.end_s, 1.0)
    arrived = np.sort(result.arrival_s[~np.isnan(result.arrival_s)])
    over = np.where(np.isnan(result.first_token_s), result.finish_s, result.first_token_s)
    over = np.sort(over[~np.isnan(over)])
    waiting = np.searchsorted(arrived, at_s, "right") - np.searchsorted(over, at_s, "right")
    return float(np.polyfit(at_s, waiting, 1)[0])


def _span_s(stretch: float = 1.0) -> float:
    return (WARM_S + COHORT_S + TAIL_S) * stretch


def agents(trace: AgentTrace, slo: Slo, start_rate: float, stretch: float = 1.0) -> Scene:
    """One of AMPD's four traces, synthetic with its averages."""
    return Scene(
        trace.name.lower(),
        slo,
        lambda rate, seed: agent_sessions(trace, rate, _span_s(stretch), seed),
        start_rate,
        stretch,
    )


def bursty_code(slo: Slo, start_rate: float) -> Scene:
    """Stand-in for Azure's code trace where that is not at hand: its lengths, in bursts."""
    prompt, output = Lengths(2048.0, 0.6, 16, 8192), Lengths(28.0, 0.6, 1, 1000)

    def make(rate: float, seed: int) -> Workload:
        rng = np.random.default_rng(seed)
        arrival_s = arrival_times(rng, rate, _span_s(), 2.0, GapLaw.GAMMA)
        count = len(arrival_s)
        return single_rounds(
            "bursty-code",
            arrival_s,
            prompt.draw_many(rng, count),
            output.draw_many(rng, count),
        )

    return Scene("bursty_code", slo, make, start_rate)


def recorded(name: str, path: Path, slo: Slo, start_rate: float) -> Scene:
    """A trace file at another rate; each seed is another stretch of it."""
    whole = parse_workload(read_text(path, "trace"), str(path))

    def make(rate: float, seed: int) -> Workload:
        own = len(whole) / max(1e-9, float(np.nanmax(whole.arrival_s)))
        return scale_rate(turn(whole, seed), rate / own)

    return Scene(name, slo, make, start_rate)


def turn(workload: Workload, seed: int) -> Workload:
    """The same single-round requests from another point on, the first ones behind the last."""
    count = len(workload)
    first = int(np.random.default_rng(seed).integers(count))
    order = np.roll(np.arange(count), -first)
    span = float(workload.arrival_s[-1] - workload.arrival_s[0]) * (1 + 1 / count)
    arrival_s = (workload.arrival_s[order] - workload.arrival_s[order[0]]) % span
    return single_rounds(
        workload.name,
        arrival_s,
        workload.prompt_tokens[order],
        workload.output_tokens[order],
        heads=_heads(workload, order),
    )


def _heads(workload: Workload, order: IntArray) -> Heads:
    starts, ids = workload.block_starts, workload.block_ids
    rows = [ids[starts[r] : starts[r + 1]] for r in order]
    ends = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Heads(workload.block_tokens, np.concatenate(rows).astype(np.int64), ends)


def scenes(mooncake: Path | None, azure: Path | None) -> list[Scene]:
    """Six workloads; without the two files, a bursty stand-in for code and no Mooncake."""
    medium, long = Slo(1500.0, 60.0), Slo(6000.0, 60.0)
    found = [
        agents(AgentTrace.TOOLBENCH, medium, 4.0),
        agents(AgentTrace.HOTPOTQA, medium, 4.0),
        agents(AgentTrace.DUREADER, medium, 2.0),
        agents(AgentTrace.GAIA, Slo(15_000.0, 60.0), 0.1, stretch=10.0),
    ]
    found.append(recorded("azure_code", azure, medium, 8.0) if azure else bursty_code(medium, 12.0))
    if mooncake:
        found.append(recorded("mooncake_conversation", mooncake, long, 2.0))
    return found


def is_sustained(slopes: list[float]) -> bool:
    """Whether the interval of the backlog's slope over seeds contains zero or lies below it."""
    mean, half = float(np.mean(slopes)), half_width(slopes)
    return mean <= 0.05 if half is None else mean - half <= 0.0
