# SPDX-License-Identifier: Apache-2.0
"""Simulated loads of which it is known when they saturate, watched through stock Dynamo's metrics.

Owns: drawing a run (ramp, step, burst, stationary), its truth, what both detectors said tick by
tick. Does not own: how many runs, the figures.

**Truth.** A request misses when its TTFT exceeds `LIMIT` times the unloaded one. A run is saturated
from the arrival of the first request from which on, while the load lasts, at least 95 % miss. That
comes from the outcome of every request, which no detector sees. `overload_s` is when the offered
load passes `NEAR` of what the prefill workers can serve; an alarm before it is false.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from controller.costs.model import TableCost
from controller.engine.values import EngineSpec
from controller.estimation.deployment import DeploymentView
from controller.estimation.metric_window import MetricWindow
from controller.estimation.regime.tracker import RegimeParams, RegimeState, tick
from controller.estimation.regime.values import SEVERITY, Regime
from controller.runtime.resources import read_profile
from controller.simulation.cluster import SimOptions, Simulation, uniform_cluster
from controller.simulation.workloads.rows import single_rounds
from controller.simulation.workloads.workload import Workload
from controller.types import FloatArray
from experiments.simulated_scrapes import roster, scrapes

PERIOD_S = 5.0
LIMIT = 10.0
NEAR = 0.9
STEADY = 0.75
"""Most load of a stationary run: above it requests do miss for seconds, by chance."""
MISSING = 0.95
PROFILES = ("llama31_70b_tp4_h100", "llama31_70b_fp8_tp4_b200", "qwen3_32b_fp8_tp2_h100")
KINDS = ("ramp", "step", "burst")
HARD = SEVERITY[Regime.TRANSITION]


@dataclass(frozen=True, slots=True)
class Draw:
    """One run; loads are shares of what the prefill pool can serve."""

    kind: str
    seed: int
    profile: str
    prefill: int
    decode: int
    prompt: int
    spread: float
    """Standard deviation of the logarithm of prompt lengths."""
    low: float
    high: float
    start_s: float
    end_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Watched:
    """What became of a run. `alarms`: times at which a detector first said transition or worse,
    after each time it had not."""

    overload_s: float | None
    saturated_s: float | None
    ours_s: tuple[float, ...]
    paper_s: tuple[float, ...]


def draw(kind: str, seed: int) -> Draw:
    """A run of a kind: cluster, prompts and load are drawn."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    stationary = kind == "stationary"
    start_s = float(rng.uniform(80, 140))
    lasts_s = {"ramp": rng.uniform(100, 160), "step": 120.0, "burst": rng.uniform(40, 70)}
    end_s = start_s + float(lasts_s.get(kind, 0.0))
    low = float(rng.uniform(0.1, STEADY) if stationary else rng.uniform(0.3, 0.7))
    return Draw(
        kind=kind,
        seed=seed,
        profile=str(rng.choice(PROFILES)),
        prefill=int(rng.integers(1, 4)),
        decode=int(rng.integers(3, 5)),
        prompt=int(rng.choice([1024, 2048, 4096])),
        spread=float(rng.choice([0.0, 0.3, 0.6])),
        low=low,
        high=low if stationary else float(rng.uniform(1.3, 2.0)),
        start_s=start_s,
        end_s=end_s,
        length_s=300.0 if stationary else end_s,
    )


def load_at(of: Draw, at_s: FloatArray) -> FloatArray:
    """Offered load at these times."""
    if of.kind == "ramp":
        share = np.clip((at_s - of.start_s) / (of.end_s - of.start_s), 0.0, 1.0)
        return of.low + (of.high - of.low) * share
    return np.where((at_s >= of.start_s) & (at_s < of.end_s), of.high, of.low)


def overload_s(of: Draw) -> float | None:
    """When the offered load first passes NEAR."""
    if of.high <= NEAR:
        return None
    if of.kind == "ramp":
        return of.start_s + (NEAR - of.low) / (of.high - of.low) * (of.end_s - of.start_s)
    return of.start_s


@cache
def _costs(profile: str) -> TableCost:
    return read_profile(profile).cost_model()


def workload(of: Draw) -> Workload:
    """Poisson arrivals whose rate follows the load (thinning)."""
    rng = np.random.default_rng([of.seed, 1])
    lengths = _prompts(of, rng, 4096)
    mean_s = float(np.mean([_costs(of.profile).prefill_s(0, int(n)) for n in lengths[:512]]))
    most = max(of.low, of.high) * of.prefill / mean_s
    count = int(most * of.length_s * 1.2 + 100)
    times = np.cumsum(rng.exponential(1.0 / most, count))
    kept = rng.random(count) * max(of.low, of.high) < load_at(of, times)
    times = times[kept & (times < of.length_s)]
    outputs = rng.integers(40, 160, len(times))
    return single_rounds(of.kind, times, _prompts(of, rng, len(times)), outputs)


def _prompts(of: Draw, rng: np.random.Generator, count: int) -> np.ndarray:
    drawn = of.prompt * np.exp(of.spread * rng.standard_normal(count) - of.spread**2 / 2)
    return np.clip(drawn, 32, 16_000).astype(np.int64)


def simulation(of: Draw) -> Simulation:
    """The run, not begun."""
    engine = EngineSpec(
        block_size=64, num_blocks=8192, max_num_batched_tokens=8192, max_num_seqs=256
    )
    cluster = uniform_cluster(of.prefill, of.decode, engine, _costs(of.profile).tables)
    return Simulation(workload(of), cluster, SimOptions("always_remote", seed=of.seed, gaps=False))


def watch(of: Draw, params: RegimeParams) -> Watched:
    """Run it; one look a control period."""
    sim = simulation(of)
    unloaded_s = _costs(of.profile).prefill_s(0, of.prompt)
    ours, paper = _Alarms(), _Alarms()
    for at_s, said in _ticks(sim, of, params):
        ours.hear(at_s, said[0])
        paper.hear(at_s, said[1])
    sim.advance()
    return Watched(
        overload_s=overload_s(of),
        saturated_s=_saturated_s(sim, of, unloaded_s),
        ours_s=tuple(ours.first_s),
        paper_s=tuple(paper.first_s),
    )


def _ticks(
    sim: Simulation, of: Draw, params: RegimeParams
) -> Iterator[tuple[float, tuple[Regime, Regime]]]:
    window = MetricWindow(3 * PERIOD_S, 3 * PERIOD_S)
    who, state = roster(sim), RegimeState()
    for number in range(1, int(of.length_s / PERIOD_S) + 1):
        sim.advance(number * PERIOD_S)
        for scrape in scrapes(sim):
            window.add(scrape)
        window.advance(sim.now_s)
        readings = DeploymentView(window, who, period_s=PERIOD_S).read()
        state, report = tick(state, readings, params)
        yield sim.now_s, (report.overall.regime, report.paper.regime)


class _Alarms:
    """Times at which a detector turned to transition or worse."""

    def __init__(self) -> None:
        self.first_s: list[float] = []
        self._hard = False

    def hear(self, at_s: float, regime: Regime) -> None:
        hard = SEVERITY.get(regime, 0) >= HARD
        if hard and not self._hard:
            self.first_s.append(at_s)
        self._hard = hard


def _saturated_s(sim: Simulation, of: Draw, unloaded_s: float) -> float | None:
    result = sim.result()
    order = np.argsort(result.arrival_s)
    arrival_s = result.arrival_s[order]
    missed = ~(result.ttft_s[order] <= LIMIT * unloaded_s)
    inside = arrival_s < of.end_s
    arrival_s, missed = arrival_s[inside], missed[inside]
    left = np.arange(len(missed), 0, -1)
    shares = np.cumsum(missed[::-1])[::-1] / left
    fits = np.flatnonzero(missed & (shares >= MISSING) & (left >= 20))
    return float(arrival_s[fits[0]]) if len(fits) else None
