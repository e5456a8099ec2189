# SPDX-License-Identifier: Apache-2.0
"""What a server at constant concurrency shows, from the cost of its steps: mean TPOT and TTFT.

Pure. Owns: two closed-form laws, one a scheduling discipline. Does not own: step costs
(controller.costs), measured servers (silicon). Requests are all alike, arrive in place of those
that finish, and share no prefixes; time outside engine steps counts as 0.

Running decodes R = min(concurrency B, KV tokens / mean context) with a mean context of
isl + osl/2; the other B - R requests wait for KV (Little's law gives how long).

INTERLEAVED (vLLM, TensorRT-LLM): prompt tokens join decode steps, up to a budget of tokens a step.
Every request computes isl prompt tokens per osl steps, so a step holds R*isl/osl of them on
average, in chunks of min(budget, isl), or more where more is needed; if even the budget is not
enough, R falls to osl*budget/isl. TPOT is the mean of steps with and without a chunk, of which a
request's own prompt is not one. TTFT is its own chunks in mixed steps and half a step of waiting;
but a benchmark that starts with all its requests at once lets those of its first round wait for
half of each other's prompts, which of `rounds` rounds is a share of 1/rounds.

PREFILL_FIRST (SGLang): waiting prompts are computed before decoding goes on, and requests of equal
length then finish together, so they come in waves. A request sees half of the other prompts of its
wave after its own first token, and the other half before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from controller.costs.model import TableCost


class Discipline(str, Enum):
    """When prompts are computed."""

    INTERLEAVED = "interleaved"
    PREFILL_FIRST = "prefill_first"


@dataclass(frozen=True, slots=True)
class Server:
    """One worker; `kv_tokens` None is unlimited, `budget` is prompt and decode tokens a step."""

    cost: TableCost
    discipline: Discipline
    budget: int
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Requests at work at any time, their prompt tokens and output tokens.

    `rounds` is requests sent in all over concurrency; infinite is the steady state alone.
    """

    concurrency: int
    isl: int
    osl: int
    rounds: float = math.inf

    @property
    def context(self) -> float:
        """Mean KV tokens of a running request."""
        return self.isl + self.osl / 2


@dataclass(frozen=True, slots=True)
class Steady:
    """Means over requests in seconds, and the requests that decode at any time."""

    tpot_s: float
    ttft_s: float
    running: float


def steady_state(server: Server, load: Load) -> Steady:
    """TPOT and TTFT of the load on the server."""
    fits = math.inf if server.kv_tokens is None else server.kv_tokens / load.context
    running = max(1.0, min(float(load.concurrency), fits))
    if server.discipline is Discipline.PREFILL_FIRST:
        tpot_s, ttft_s = _waves(server, load, running)
    else:
        budget = max(1.0, server.budget - running)
        running = max(1.0, min(running, load.osl * budget / load.isl))
        tpot_s, ttft_s = _interleaved(server, load, running, budget)
    waiting_s = (load.concurrency - running) / running * (ttft_s + load.osl * tpot_s)
    return Steady(tpot_s, ttft_s + max(0.0, waiting_s), running)


def _decode_s(cost: TableCost, load: Load, running: float) -> float:
    return float(cost.steps_s(running, running * load.context, 0.0, 0.0))


def _mixed_s(cost: TableCost, load: Load, running: float, chunk: float) -> float:
    """A step with `chunk` tokens of prompts at their mean position: pairs = chunk * isl/2."""
    return float(cost.steps_s(running, running * load.context, chunk, chunk * load.isl / 2))


def _interleaved(server: Server, load: Load, running: float, budget: float) -> tuple[float, float]:
    needed = running * load.isl / load.osl
    chunk = max(min(budget, load.isl), needed)
    others = (running - 1) / running
    share = min(1.0, needed / chunk) * others
    mixed_s = _mixed_s(server.cost, load, running, chunk)
    tpot_s = (1 - share) * _decode_s(server.cost, load, running) + share * mixed_s
    chunks = load.isl / min(chunk, load.isl)
    first_s = (running - 1) / 2 * server.cost.prefill_s(0, load.isl) / load.rounds
    return tpot_s, chunks * mixed_s + tpot_s / 2 + first_s


def _waves(server: Server, load: Load, running: float) -> tuple[float, float]:
    prefill_s = server.cost.prefill_s(0, load.isl)
    tpot_s = _decode_s(server.cost, load, running) + (running - 1) / 2 * prefill_s / load.osl
    return tpot_s, (running + 1) / 2 * prefill_s
