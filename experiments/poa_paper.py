# SPDX-License-Identifier: Apache-2.0
"""The price-of-anarchy paper's experiments 1, 2, 4a, 4b (arXiv 2606.17081) in the simulator.

    python experiments/poa_paper.py [--quick] [--answers 32] [--no-prefix-cache] [--out rows.csv]

Closed loop of C clients, 5 templates, 128 input tokens, profiles of a 340B TP8 (1P/2D) and a 70B
TP4 (1P/5D, 1P/2D), and 2P/1D, which the paper could not run. Decode workers are chosen as Dynamo's
KV router does, at temperature tau and overlap weight omega (cost omega*uncached blocks + active
blocks).

- *Experiment 1*: the index over a grid of C, at (tau, omega) = (0, 1). *2*: its regimes: where it
stops
  being flat. *4a*: 16 points of (tau, omega) below the knee. *4b*: the same at C above it.
- The paper's index is not public; four candidates stand side by side, each over windows of as many
  requests as decode workers: `frozen`     cost of the binding over a Hungarian matching, both by
  the step time each worker would
               have (state frozen at the window's start): the author's later port;
  `realised`   realised time to the first token over that of an idle system: what a numerator that
  counts
               queueing and a denominator that does not would give;
  `binding`    our routing loss of binding (step times, best of all assignments);
  `prefill`    our routing loss of prefill placement (1 by construction with one prefill worker).
- 2P/1D tells routing from starvation: one decode worker leaves nothing to bind, so what still grows
in
  `realised` there is queueing, not routing.

Output lengths are not published: --answers is an assumption. The last line is JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from controller.costs.model import TableCost
from controller.engine.values import EngineSpec
from controller.errors import UserError
from controller.estimation.poa.binding import BindingWindow, binding_loss
from controller.estimation.poa.frozen import frozen_index
from controller.estimation.poa.loss import Goal, routing_loss
from controller.estimation.poa.window import PlacementWindow, make_window
from controller.routing.kernels.dynamo import cheapest
from controller.runtime.resources import read_profile
from controller.runtime.sources.routing import step_time
from controller.simulation.cluster import SimOptions, Simulation, uniform_cluster
from controller.simulation.lengths import constant
from controller.simulation.workloads.closed_loop import closed_loop

GRID = (8, 16, 32, 64, 96, 104, 112, 120, 128, 160, 192, 256)
FAR = (384, 512, 768)
"""With --far: beyond the paper's grid, to find a knee that lies elsewhere here."""
POINTS = tuple((tau, omega) for tau in (0.0, 0.35, 0.7, 0.8) for omega in (0.0, 0.1, 1.0, 2.0))
PROMPT, TEMPLATES, BLOCK = 128, 5, 16
TICK_S = 0.002
LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Site:
    """A model on a split."""

    name: str
    profile: str
    prefill: int
    decode: int


SITES = (
    Site("340B 1P2D", "nemotron4_340b_tp8_b200", 1, 2),
    Site("70B 1P5D", "llama31_70b_fp8_tp4_b200", 1, 5),
    Site("70B 1P2D", "llama31_70b_fp8_tp4_b200", 1, 2),
    Site("70B 2P1D", "llama31_70b_fp8_tp4_b200", 2, 1),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    site: str
    clients: int
    tau: float
    omega: float
    frozen: float | None
    realised: float
    binding: float | None
    prefill: float | None
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_ms: float
    requests_per_s: float


@cache
def costs(profile: str) -> TableCost:
    """The workers' cost model."""
    return read_profile(profile).cost_model()


class Run:
    """One closed loop; decode workers are chosen from outside, as requests come in."""

    def __init__(
        self, site: Site, clients: int, tau: float, omega: float, requests: int, answer: int,
        cache: bool = True,
    ) -> None:  # fmt: skip
        self.site, self.tau, self.omega = site, tau, omega
        engine = EngineSpec(
            block_size=BLOCK,
            num_blocks=32_768,
            max_num_batched_tokens=8192,
            max_num_seqs=512,
            prefix_cache=cache,
        )
        cluster = uniform_cluster(site.prefill, site.decode, engine, costs(site.profile).tables)
        load = closed_loop(
            clients, requests, 1, templates=TEMPLATES, prompt_tokens=PROMPT,
            output=constant(answer), think_s=TICK_S, block_tokens=BLOCK,
        )  # fmt: skip
        self.load = load
        self.template = load.block_ids[load.block_starts[:-1]]
        self.sim = Simulation(load, cluster, SimOptions("kv_cost", gaps=False))
        self._known: list[set[int]] = [set() for _ in range(site.decode)]
        self._rng = np.random.default_rng(2)
        self.seen: list[tuple[int, int, np.ndarray, np.ndarray]] = []
        """(row, chosen, batch, context) of each binding."""

    def serve(self) -> None:
        """To the end of the load."""
        req, bound = self.sim.state.req, self.sim.state.bound
        unbound = np.ones(len(self.load), bool)
        self._bind(np.flatnonzero(self.load.after < 0), bound, unbound)
        more, at_s = True, 0.0
        while more:
            at_s += TICK_S
            more = self.sim.advance(at_s)
            # A follower's arrival is known a tick ahead: its pause is one tick.
            coming = np.flatnonzero(unbound & (req["arrival_s"] >= 0))
            if len(coming):
                self._bind(coming, bound, unbound)

    def _bind(self, rows: np.ndarray, bound: np.ndarray, unbound: np.ndarray) -> None:
        seen = self.sim.observe()
        first = self.site.prefill
        batch = (seen.batch + seen.pulling + seen.waiting)[first:].astype(np.int64)
        context = seen.context_tokens[first:].astype(np.int64)
        for row in rows:
            template = int(self.template[row])
            lacks = np.array([template not in known for known in self._known], float)
            cost = self.omega * lacks * (PROMPT // BLOCK) + context / BLOCK
            ties = cost + 1e-9 * self._rng.random(len(cost))
            chosen = int(cheapest(ties, self.tau, float(self._rng.random())))
            self.seen.append((int(row), chosen, batch.copy(), context.copy()))
            bound[self.load.session[row]] = first + chosen
            unbound[row] = False
            self._known[chosen].add(template)
            batch[chosen] += 1
            context[chosen] += PROMPT


def measure(
    site: Site, clients: int, tau: float, omega: float, requests: int, answer: int,
    cache: bool = True,
) -> Row:  # fmt: skip
    """Serve and take every index; the first fifth of the requests is warm-up."""
    run = Run(site, clients, tau, omega, requests, answer, cache)
    run.serve()
    result = run.sim.result()
    kept = np.arange(len(run.load)) >= max(clients, len(run.load) // 5)
    ttft_s = (result.ttft_s)[kept & result.served]
    idle_s = _idle_ttft_s(site, cache)
    bindings, frozen = _binding_windows(run, kept)
    step = step_time(costs(site.profile))
    span_s = np.nanmax(result.finish_s) - result.arrival_s[kept].min()
    return Row(
        site=site.name,
        clients=clients,
        tau=tau,
        omega=omega,
        frozen=frozen_index(frozen).ratio_of_sums,
        realised=float(ttft_s.mean() / idle_s),
        binding=binding_loss(bindings, step, Goal.LATENCY).ratio,
        prefill=routing_loss(_prefill_windows(run, result, kept), Goal.LATENCY).ratio,
        ttft_p50_ms=float(np.median(ttft_s)) * 1e3,
        ttft_p99_ms=float(np.percentile(ttft_s, 99)) * 1e3,
        itl_ms=float(result.itl_s[kept & result.served].mean()) * 1e3,
        requests_per_s=float(kept.sum() / span_s),
    )


@cache
def _idle_ttft_s(site: Site, cache: bool) -> float:
    """Mean TTFT of a single client."""
    run = Run(site, 1, 0.0, 1.0, 24, 4, cache)
    run.serve()
    return float(run.sim.result().ttft_s[8:].mean())


def _binding_windows(
    run: Run, kept: np.ndarray
) -> tuple[list[BindingWindow], list[PlacementWindow]]:
    """Consecutive bindings, as many as decode workers (at least two)."""
    size = max(2, run.site.decode)
    step = step_time(costs(run.site.profile))
    seen = [each for each in run.seen if kept[each[0]]]
    bindings, frozen = [], []
    for start in range(0, len(seen) - size + 1, size):
        part = seen[start : start + size]
        _, _, batch, context = part[0]
        chosen = np.array([each[1] for each in part])
        bindings.append(BindingWindow(np.full(size, PROMPT), chosen, batch, context, LIMIT_S))
        # Frozen: the step time that one more request would find at each worker.
        alone = step(batch + 1.0, context + float(PROMPT))
        own = np.repeat(alone[None, :], size, axis=0)
        frozen.append(
            make_window(
                np.zeros(size), own, np.full(size, LIMIT_S), chosen,
                batch.astype(float) * step(np.maximum(batch, 1.0), context.astype(float)),
            )
        )  # fmt: skip
    return bindings, frozen


def _prefill_windows(run: Run, result: Any, kept: np.ndarray) -> list[PlacementWindow]:
    """Consecutive prefill placements, as many as prefill workers (at least two)."""
    if run.site.prefill < 2:
        return []
    size = 2 * run.site.prefill
    order = np.flatnonzero(kept & (result.prefill_worker >= 0))
    order = order[np.argsort(result.arrival_s[order], kind="stable")]
    model, windows = costs(run.site.profile), []
    own_s = np.array([model.prefill_s(int(h), PROMPT - int(h)) for h in result.hit_tokens])
    for start in range(0, len(order) - size, size):
        rows = order[start : start + size]
        at_s = float(result.arrival_s[rows[0]])
        free = np.zeros(run.site.prefill)
        late = order[:start][-4 * 512 :]
        for worker in range(run.site.prefill):
            ends = result.prefill_end_s[late[result.prefill_worker[late] == worker]]
            free[worker] = max(0.0, float(np.nanmax(ends, initial=at_s)) - at_s)
        windows.append(
            make_window(
                result.arrival_s[rows] - at_s,
                np.repeat(own_s[rows][:, None], run.site.prefill, axis=1),
                np.full(size, LIMIT_S),
                result.prefill_worker[rows],
                free,
                end_s=float(result.arrival_s[order[start + size]]) - at_s,
            )
        )
    return windows


def main() -> int:
    """Run, print tables, JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer clients and points")
    parser.add_argument("--answers", type=int, default=32, help="output tokens (not published)")
    parser.add_argument(
        "--requests", type=int, default=12, help="requests a client, at least 800 in all"
    )
    parser.add_argument("--far", action="store_true", help=f"C of {FAR} too")
    parser.add_argument(
        "--prefix-cache", action=argparse.BooleanOptionalAction, default=True,
        help="whether engines reuse the 5 templates; without, a prefill costs all 128 tokens",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="all rows, CSV")
    args = parser.parse_args()
    if args.answers < 2 or args.requests < 2:
        print("poa_paper: --answers and --requests must be at least 2", file=sys.stderr)
        return 2
    try:
        rows = experiments(args)
    except UserError as error:
        print(f"poa_paper: {error}", file=sys.stderr)
        return 2
    if args.out is not None:
        with args.out.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, fieldnames=list(Row.__slots__))
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
    print(json.dumps(figures(rows)))
    return 0


def experiments(args: argparse.Namespace) -> list[Row]:
    """All rows: the grid at (0, 1), then the points below and above the knee."""
    grid = (GRID[::3] if args.quick else GRID) + (FAR if args.far else ())
    points = POINTS[::5] if args.quick else POINTS
    rows = []
    for site in SITES:
        print(f"\n{site.name}: clients, frozen, realised, binding, prefill, TTFT p50/p99 ms, req/s")

        def one(clients: int, tau: float, omega: float, site: Site = site) -> Row:
            count = max(800 if not args.quick else 300, args.requests * clients)
            row = measure(site, clients, tau, omega, count, args.answers, args.prefix_cache)
            rows.append(row)
            print(_line(row), flush=True)
            return row

        swept = [one(clients, 0.0, 1.0) for clients in grid]
        found = knee(swept)
        below, above = sides(found, grid)
        print(f"knee: {found}; points at {below} (4a) and {above} (4b)")
        for clients in (below, above):
            for tau, omega in points:
                if (tau, omega) != (0.0, 1.0):
                    one(clients, tau, omega)
    return rows


def sides(at: int | None, grid: Sequence[int]) -> tuple[int, int]:
    """C of experiments 4a and 4b: 64 and the knee, or around what there is."""
    below = max([c for c in grid if c <= 64 and (at is None or c < at)], default=grid[0])
    return below, at or grid[-1]


def knee(swept: list[Row]) -> int | None:
    """First C that gives 95 % of the most throughput of the sweep; None if it grows to its end."""
    most = max((row.requests_per_s for row in swept), default=0.0)
    found = next((row.clients for row in swept if row.requests_per_s >= 0.95 * most), None)
    return None if not swept or found == swept[-1].clients else found


def figures(rows: list[Row]) -> dict[str, Any]:
    """By site: knee, plateau and growth of each index, spread over the points below and above."""
    found: dict[str, Any] = {}
    for site in SITES:
        mine = [row for row in rows if row.site == site.name]
        base = [row for row in mine if (row.tau, row.omega) == (0.0, 1.0)]
        at = knee(base)
        below, above = sides(at, [row.clients for row in base])
        found[site.name] = {
            "knee_clients": at,
            "realised": {str(row.clients): round(row.realised, 2) for row in base},
            "frozen": {str(row.clients): _rounded(row.frozen) for row in base},
            "binding": {str(row.clients): _rounded(row.binding) for row in base},
            "cv_below": spread([row for row in mine if row.clients == below]),
            "cv_above": spread([row for row in mine if row.clients == above]),
        }
    return found


def spread(rows: list[Row]) -> dict[str, float | None]:
    """Coefficient of variation of each index over the points of (tau, omega)."""
    out: dict[str, float | None] = {}
    for name in ("frozen", "realised", "binding", "ttft_p99_ms", "requests_per_s"):
        values = [v for row in rows if (v := getattr(row, name)) is not None]
        wide = len(values) > 1 and np.mean(values) > 0
        out[name] = round(float(np.std(values) / np.mean(values)), 4) if wide else None
    return out


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _line(row: Row) -> str:
    def number(value: float | None) -> str:
        return "      -" if value is None else f"{value:7.3f}"

    return (
        f"{row.clients:5d} ({row.tau:.2f},{row.omega:.1f}) {number(row.frozen)} "
        f"{row.realised:8.2f} {number(row.binding)} {number(row.prefill)} "
        f"{row.ttft_p50_ms:8.1f}/{row.ttft_p99_ms:<9.1f}{row.requests_per_s:8.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
