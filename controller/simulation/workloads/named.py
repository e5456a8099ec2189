# SPDX-License-Identifier: Apache-2.0
"""Synthetic workloads by name: `gaia,rate=2,duration=120` as an operator writes it.

Owns: the names, their parameters and defaults. Does not own: the laws (the modules beside).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller.simulation.lengths import Lengths
from controller.simulation.synthetic import CalmThenBurst, synthesize
from controller.simulation.traces import TraceError
from controller.simulation.workloads.agents import AgentTrace, agent_sessions
from controller.simulation.workloads.bridge import from_trace
from controller.simulation.workloads.clients import client_load, draw_clients
from controller.simulation.workloads.closed_loop import closed_loop
from controller.simulation.workloads.reasoning import ReasoningLaw, reasoning_sessions
from controller.simulation.workloads.rollouts import rollouts
from controller.simulation.workloads.workload import Workload

_MOST = 20_000_000
"""Sessions that one call may draw: beyond, memory ends before patience does."""
_HIGHEST = 1 << 24

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Named:
    """A kind of load. `defaults` are all its parameters; those of `whole` are counts."""

    make: Callable[[Values, int], Workload]
    defaults: Values
    whole: frozenset[str] = frozenset()


def synthetic(text: str, seed: int) -> Workload:
    """The workload of `NAME[,KEY=VALUE...]`. TraceError: one line with what is known."""
    name, *settings = text.split(",")
    if name not in SYNTHETIC:
        raise TraceError(f"synthetic:{name}: unknown; known: {', '.join(SYNTHETIC)}")
    kind = SYNTHETIC[name]
    values = dict(kind.defaults)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in values:
            known = ", ".join(f"{each}={default:g}" for each, default in kind.defaults.items())
            raise TraceError(f"synthetic:{name}: {setting!r} is not known; known: {known}")
        values[key] = _number(f"synthetic:{name}: {key}", value, key in kind.whole)
    if _sessions(values) > _MOST:
        raise TraceError(f"synthetic:{name}: more than {_MOST:,} sessions; lower rate or counts")
    return kind.make(values, seed)


def _number(what: str, text: str, whole: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    good = math.isfinite(value) and value >= 0 and (value.is_integer() or not whole)
    if not good or (whole and value > _HIGHEST):
        kind = f"a whole number up to {_HIGHEST:,}" if whole else "a number"
        raise TraceError(f"{what} is {text!r}: give {kind}, 0 or more")
    return value


def _sessions(values: Values) -> float:
    """Of the order of what will be drawn."""
    counts = [values.get("requests", 0.0), values.get("prompts", 0.0) * values.get("samples", 0.0)]
    return max(values.get("rate", 0.0) * values.get("duration", 0.0), *counts)


def _agents(trace: AgentTrace) -> Named:
    def make(v: Values, seed: int) -> Workload:
        return agent_sessions(
            trace, v["rate"], v["duration"], seed, cv=v["cv"], shared_tokens=int(v["shared_tokens"])
        )

    defaults = {"rate": 1.0, "duration": 300.0, "cv": 1.0, "shared_tokens": 0.0}
    return Named(make, defaults, frozenset({"shared_tokens"}))


def _lengths(v: Values) -> tuple[Lengths, Lengths]:
    return tuple(  # type: ignore[return-value]
        Lengths(v[name], v["sigma"], 1, _HIGHEST) for name in ("prompt", "output")
    )


def _clients(v: Values, seed: int) -> Workload:
    prompt, output = _lengths(v)
    clients = draw_clients(int(v["clients"]), v["rate"], prompt, output, seed)
    return client_load(clients, v["duration"], seed + 1)


def _calm_then_burst(v: Values, seed: int) -> Workload:
    law = CalmThenBurst(
        calm_s=v["calm"],
        burst_s=v["burst"],
        calm_rate=v["calm_rate"],
        burst_rate=v["burst_rate"],
    )
    return from_trace(synthesize(law, seed))


def _poisson(v: Values, seed: int) -> Workload:
    from controller.simulation.workloads.clients import Client

    prompt, output = _lengths(v)
    client = Client(v["rate"], prompt, output, cv=v["cv"])
    return client_load([client], v["duration"], seed, "poisson")


def _closed_loop(v: Values, seed: int) -> Workload:
    return closed_loop(
        int(v["concurrency"]),
        int(v["requests"]),
        seed,
        templates=int(v["templates"]),
        prompt_tokens=int(v["prompt"]),
        output=Lengths(v["output"], v["sigma"], 1, _HIGHEST),
        think_s=v["think"],
    )


SYNTHETIC: dict[str, Named] = {
    "poisson": Named(
        _poisson,
        {
            "rate": 4.0,
            "duration": 300.0,
            "prompt": 2000.0,
            "output": 200.0,
            "sigma": 0.6,
            "cv": 1.0,
        },
    ),
    "calm_then_burst": Named(
        _calm_then_burst,
        {"calm": 20.0, "burst": 20.0, "calm_rate": 3.9, "burst_rate": 9.0},
    ),
    "clients": Named(
        _clients,
        {
            "clients": 20.0,
            "rate": 4.0,
            "duration": 300.0,
            "prompt": 2000.0,
            "output": 200.0,
            "sigma": 0.6,
        },
        frozenset({"clients"}),
    ),
    **{trace.name.lower(): _agents(trace) for trace in AgentTrace},
    "reasoning": Named(
        lambda v, seed: reasoning_sessions(
            ReasoningLaw(), v["rate"], v["duration"], seed, cv=v["cv"]
        ),
        {"rate": 0.5, "duration": 300.0, "cv": 1.0},
    ),
    "closed_loop": Named(
        _closed_loop,
        {
            "concurrency": 32.0,
            "requests": 2000.0,
            "templates": 5.0,
            "prompt": 128.0,
            "output": 128.0,
            "sigma": 0.0,
            "think": 0.0,
        },
        frozenset({"concurrency", "requests", "templates", "prompt"}),
    ),
    "rollouts": Named(
        lambda v, seed: rollouts(int(v["prompts"]), int(v["samples"]), seed),
        {"prompts": 64.0, "samples": 8.0},
        frozenset({"prompts", "samples"}),
    ),
}
"""Everything that `synthetic` knows."""
