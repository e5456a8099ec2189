# SPDX-License-Identifier: Apache-2.0
"""The simulator's law as a plain event loop around `controller.engine.Engine`, every step made.

Slow and simple on purpose: nothing is jumped over, nothing is lazy, every pull end and release is
an event of its own. It shares with the fast simulator only the rules (compiled kernels over plain
numbers), the cost tables and the clock's keys.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
import reference_rules as own_rules

from controller.costs.model import TableCost
from controller.engine import Engine, EngineRequest, FinishReason
from controller.estimation.windows import MeanWindow
from controller.routing.kernels import placement as rules
from controller.routing.kernels.binding import least_context
from controller.routing.kernels.draws import decision_draw
from controller.routing.kernels.estimates import prefill_beside_s, queue_s
from controller.simulation.cluster import clock
from controller.simulation.cluster.spec import ClusterSpec, SimOptions
from controller.simulation.workloads.workload import Workload, engine_block_ids

key = clock.key.py_func
PULL_END, STEP_END, ARRIVAL = range(3)
LONG_S = 1e9


@dataclass
class Served:
    """What the reference found out about one request."""

    arrival_s: float = math.nan
    sent_s: float = math.nan
    first_s: float = math.nan
    finish_s: float = math.nan
    status: str = "pending"
    place: str = ""
    prefill_worker: int = -1
    decode_worker: int = -1
    tokens_s: list[float] = field(default_factory=list)


class Worker:
    def __init__(self, number: int, spec, costs: TableCost, options: SimOptions) -> None:
        self.number = number
        self.spec = spec
        self.costs = costs
        self.engine = Engine(spec, costs)
        self.end_s: float | None = None
        self.free_s = [0.0, 0.0]  # link out, link in
        # The router's books.
        self.queue = own_rules.RouterQueue(options)
        self.flying: dict[int, None] = {}
        self.wait_s = self.fly_s = self.since_s = self.local_until_s = 0.0
        self.ttft = MeanWindow(options.params.window_s)
        self.booked = self.made = self.batch = self.context = 0
        self.generated: dict[int, int] = {}
        self.decoding: set[int] = set()
        self.locals: set[int] = set()  # local prefills without a token
        self.reported: set[int] = set()
        self.itl = MeanWindow(options.params.window_s)


class Reference:
    def __init__(self, workload: Workload, cluster: ClusterSpec, options: SimOptions) -> None:
        self.w = workload
        self.options = options
        self.contention = cluster.contention
        self.workers = [
            Worker(
                i,
                cluster.engines[each.engine],
                TableCost(cluster.costs[each.costs]),
                options,
            )
            for i, each in enumerate(cluster.workers)
        ]
        self.prefill = self.workers[: len(cluster.prefill)]
        self.decode = self.workers[len(cluster.prefill) :]
        self.out = [Served() for _ in range(len(workload))]
        self.events: list[tuple[int, int, float, int, object]] = []
        self.count = 0
        self.ready: dict[int, float] = {}
        self.bound: dict[int, Worker] = {}
        self.asks: list[dict] = [{} for _ in range(len(workload))]
        self.turns = [0, 0]
        self.draws = [0, 0]
        self.followers = workload.followers
        self.clock = 0

    def run(self) -> list[Served]:
        for r in np.flatnonzero(self.w.after < 0):
            self.push(float(self.w.arrival_s[r]), ARRIVAL, int(r))
        while self.events or self.ready:
            if self.ready and (not self.events or self.events[0][0] > self.clock):
                number = min(self.ready)
                self.compose(self.workers[number], self.ready.pop(number))
                continue
            self.clock, kind, _order, _sub, what = heapq.heappop(self.events)
            if kind == ARRIVAL:
                self.arrive(*what)
            elif kind == STEP_END:
                self.step_end(self.workers[what])
            else:
                self.pull_end(*what)
        return self.out

    def push(self, at_s: float, kind: int, what, order: float = 0.0) -> None:
        self.count += 1
        if kind == ARRIVAL:
            entry = (key(at_s), kind, float(what), self.count, (what, at_s))
        elif kind == STEP_END:
            entry = (key(at_s), kind, float(what), self.count, what)
        else:
            entry = (key(at_s), kind, order, self.count, what)
        heapq.heappush(self.events, entry)

    # --- one worker -------------------------------------------------------------------------

    def compose(self, worker: Worker, now_s: float) -> None:
        step = worker.engine.begin_step(now_s)
        for pull in worker.engine.take_pulls():
            self.start_pull(worker, pull, now_s)
        self.report(worker)
        if step is not None:
            worker.end_s = now_s + step.duration_s
            self.push(worker.end_s, STEP_END, worker.number)
            worker.step = step

    def step_end(self, worker: Worker) -> None:
        now_s, worker.end_s = worker.end_s, None
        for output in worker.engine.finish_step(now_s):
            r, leg = output.request_id.split("/")
            self.token(worker, int(r), leg, output, now_s)
        if worker.step.decode_requests:
            worker.itl.add(now_s, worker.step.duration_s, worker.step.decode_requests)
        self.report(worker)
        self.ready.setdefault(worker.number, now_s)

    def token(self, worker: Worker, r: int, leg: str, output, now_s: float) -> None:
        done = output.finish is FinishReason.LENGTH
        if leg == "prefill":
            assert done
            self.prefilled(worker, r, now_s)
            return
        self.out[r].tokens_s.append(now_s)
        worker.locals.discard(r)
        worker.generated[r] = worker.generated.get(r, 0) + 1
        worker.decoding.add(r)
        if done:
            del worker.generated[r]
            worker.decoding.discard(r)
            worker.booked -= int(self.w.prompt_tokens[r])
            self.out[r].first_s = self.out[r].tokens_s[0]
            self.out[r].finish_s = now_s
            self.end(r, "served", now_s)

    def report(self, worker: Worker) -> None:
        """The engine's own sums, taken over when the set of its decodes has changed."""
        running = worker.engine._scheduler.running
        decodes = {s.request.request_id for s in running.sequences if s.decoding}
        if decodes != worker.reported:
            worker.reported = decodes
            worker.batch, worker.context = running.decodes, running.decode_kv_tokens
            worker.made = sum(s.generated for s in running.sequences if s.decoding)

    def start_pull(self, worker: Worker, pull, now_s: float) -> None:
        r = int(pull.request_id.split("/")[0])
        source = self.workers[self.out[r].prefill_worker]
        end_s = now_s
        if pull.tokens:
            alone_s = worker.costs.kv_transfer_s(pull.tokens)
            assert alone_s == pull.duration_s
            end_s = now_s + alone_s
            if self.contention:
                latency_s = float(worker.costs.tables.transfer[0])
                free_s = max(now_s, source.free_s[0], worker.free_s[1]) + (alone_s - latency_s)
                source.free_s[0] = worker.free_s[1] = free_s
                end_s = free_s + latency_s
        self.push(end_s, PULL_END, (worker, source, pull, r, end_s), order=end_s)

    def pull_end(self, worker: Worker, source: Worker, pull, r: int, now_s: float) -> None:
        contents = self.contents(r, worker)[pull.skip_blocks : pull.skip_blocks + pull.blocks]
        worker.engine.finish_pull(pull.request_id, contents, now_s)
        assert source.engine.release(f"{r}/prefill", now_s)
        for each in (worker, source):
            if each.end_s is None:
                self.ready.setdefault(each.number, now_s)

    # --- the router -------------------------------------------------------------------------

    def arrive(self, r: int, now_s: float) -> None:
        out = self.out[r]
        out.arrival_s = now_s
        fresh = int(self.w.session[r]) not in self.bound
        decode = self.bind(r)
        out.decode_worker = decode.number
        prompt, output = int(self.w.prompt_tokens[r]), int(self.w.output_tokens[r])
        if self.blocks(decode, prompt + output - 1) > decode.spec.num_blocks:
            self.end(r, "rejected", now_s)
            return
        choice, decode, history, cached = self.place(r, decode, fresh, now_s)
        if choice is None:
            self.bound[int(self.w.session[r])] = decode
            out.decode_worker = decode.number
            self.send_local(r, decode, history, now_s)
            return
        if self.blocks(choice, prompt) > choice.spec.num_blocks:
            self.end(r, "rejected", now_s)
            return
        decode.booked += prompt
        out.place, out.prefill_worker = "remote", choice.number
        self.asks[r] = {
            "uncached": prompt - min(cached, prompt - 1),
            "predicted": self.own_s(choice, r, cached),
            "history": history,
            "queued": now_s,
        }
        self.wait(choice, r, now_s)
        self.pump(choice, now_s)

    def wait(self, choice: Worker, r: int, now_s: float) -> None:
        """Into the worker's queue at the router."""
        decode = self.workers[self.out[r].decode_worker]
        choice.queue.join(
            r,
            now_s,
            self.asks[r]["uncached"],
            int(self.w.priority[r]),
            self.asks[r]["predicted"],
            own_rules.due_s(self, r, decode, self.asks[r]["history"], now_s),
            now_s,
        )
        choice.wait_s += self.asks[r]["predicted"]

    def bind(self, r: int) -> Worker:
        session = int(self.w.session[r])
        if session not in self.bound:
            if self.options.binding == "round_robin":
                self.bound[session] = self.decode[self.turns[1] % len(self.decode)]
                self.turns[1] += 1
            else:
                draw = decision_draw(~self.options.seed, self.draws[1])
                self.draws[1] += 1
                context = np.array([d.booked + d.made for d in self.decode])
                self.bound[session] = self.decode[least_context(context, draw)]
        return self.bound[session]

    def place(self, r: int, decode: Worker, fresh: bool, now_s: float):
        """(prefill worker or None for local, decode worker, history, hits)."""
        rule = self.options.placement
        self.schedule = (self.options.local_chunk_tokens,) * bool(self.options.local_chunk_tokens)
        self.local_s = None
        if not self.prefill or rule == "always_local":
            return None, decode, self.hits(decode, r), 0
        if rule == "round_robin":
            chosen = self.prefill[self.turns[0] % len(self.prefill)]
            self.turns[0] += 1
            return chosen, decode, 0, self.hits(chosen, r)
        history = self.hits(decode, r)
        if rule in own_rules.PLACES:
            chosen, decode, history = own_rules.PLACES[rule](self, r, decode, history, fresh, now_s)
            return chosen, decode, history, self.hits(chosen, r) if chosen else 0
        prompt = int(self.w.prompt_tokens[r])
        transfer_s = decode.costs.kv_transfer_s(prompt - history)
        remote_s = np.array(
            [
                self.own_s(p, r, self.hits(p, r))
                + queue_s(p.wait_s, p.fly_s, p.since_s, now_s)
                + transfer_s
                for p in self.prefill
            ]
        )
        index = self.choose(r, decode, remote_s, history, now_s)
        if index < 0:
            return None, decode, history, 0
        return self.prefill[index], decode, history, self.hits(self.prefill[index], r)

    def choose(self, r: int, decode: Worker, remote_s, history: int, now_s: float) -> int:
        rule = self.options.placement
        prompt = int(self.w.prompt_tokens[r])
        local_wait_s = max(0.0, decode.local_until_s - now_s)
        if rule == "always_remote":
            return rules.always_remote(remote_s)[0]
        if rule == "least_ttft":
            step_s = decode.costs.step_s(decode.batch + 1, decode.context + prompt, 0, 0.0)
            beside_s = prefill_beside_s(
                decode.costs.tables,
                float(decode.batch),
                float(decode.context),
                float(history),
                float(prompt - history),
                float(decode.costs.max_chunk_tokens),
            )
            return rules.least_ttft(remote_s + step_s, beside_s + local_wait_s)[0]
        return self.ampd(r, decode, remote_s, history, local_wait_s, now_s)

    def ampd(self, r, decode, remote_s, history, local_wait_s, now_s) -> int:
        slo, params = self.options.slo, self.options.params
        draw = decision_draw(self.options.seed, self.draws[0])
        self.draws[0] += 1
        choice, reason = rules.slack(
            np.array([self.ttft_window_s(p, now_s) for p in self.prefill]),
            decode.itl.mean(now_s),
            True,
            params.alpha * (slo.ttft_ms / 1e3),
            params.beta * (slo.itl_ms / 1e3),
            draw,
            np.empty(len(self.prefill), np.int64),
        )
        if reason < 0:
            local_s = self.own_s(decode, r, history) + local_wait_s
            choice, _ = rules.least_estimate(remote_s, local_s)
        return choice

    def ttft_window_s(self, worker: Worker, now_s: float) -> float:
        mean = worker.ttft.mean(now_s)
        held = [*worker.flying, *worker.queue]
        if math.isnan(mean) and held:
            return max(0.0, now_s - min(self.asks[r]["queued"] for r in held))
        return mean

    def send_local(self, r: int, decode: Worker, history: int, now_s: float) -> None:
        decode.booked += int(self.w.prompt_tokens[r])
        self.out[r].place = "local"
        self.out[r].sent_s = now_s
        predicted_s = self.own_s(decode, r, history) if self.local_s is None else self.local_s
        decode.locals.add(r)
        decode.local_until_s = max(decode.local_until_s, now_s) + predicted_s
        self.add(decode, r, "local", now_s)

    def pump(self, worker: Worker, now_s: float) -> None:
        bound = self.options.in_flight_steps * worker.spec.max_num_batched_tokens
        while worker.queue:
            chosen = worker.queue.next(now_s, bound)
            if chosen is None:
                return
            r, ordered = chosen
            ask = self.asks[r]
            worker.queue.send(r, ordered, now_s)
            worker.wait_s = worker.wait_s - ask["predicted"] if worker.queue else 0.0
            if not worker.flying:
                worker.since_s = now_s
            worker.flying[r] = None
            worker.fly_s += ask["predicted"]
            self.out[r].sent_s = now_s
            self.add(worker, r, "prefill", now_s)
            if self.options.reject:
                self.reject_late(worker, now_s)

    def reject_late(self, worker: Worker, now_s: float) -> None:
        for r in worker.queue.late():
            worker.queue.drop(r, now_s)
            ask = self.asks[r]
            worker.wait_s = worker.wait_s - ask["predicted"] if worker.queue else 0.0
            self.workers[self.out[r].decode_worker].booked -= int(self.w.prompt_tokens[r])
            self.end(r, "rejected", now_s)

    def prefilled(self, worker: Worker, r: int, now_s: float) -> None:
        del worker.flying[r]
        worker.queue.land(r, now_s)
        ask = self.asks[r]
        worker.fly_s = worker.fly_s - ask["predicted"] if worker.flying else 0.0
        worker.since_s = now_s
        decode = self.workers[self.out[r].decode_worker]
        lacking_s = decode.costs.kv_transfer_s(int(self.w.prompt_tokens[r]) - ask["history"])
        worker.ttft.add(now_s, now_s - self.out[r].arrival_s + lacking_s)
        self.pump(worker, now_s)
        self.add(decode, r, "decode", now_s)

    def end(self, r: int, status: str, now_s: float) -> None:
        self.out[r].status = status
        then = int(self.followers[r])
        if then >= 0 and (status == "served" or self.w.stream[then] != self.w.stream[r]):
            self.push(now_s + float(self.w.think_s[then]), ARRIVAL, then)

    # --- between them -----------------------------------------------------------------------

    def add(self, worker: Worker, r: int, leg: str, now_s: float) -> None:
        request = EngineRequest(
            request_id=f"{r}/{leg}",
            prompt_tokens=int(self.w.prompt_tokens[r]),
            max_output_tokens=int(self.w.output_tokens[r]),
            contents=self.contents(r, worker),
            hold_kv=leg == "prefill",
            pull_kv=leg == "decode",
            priority=-int(self.w.priority[r]),
            chunks=self.schedule if leg == "local" else (),
        )
        worker.engine.add(request, now_s)
        if worker.end_s is None:
            self.ready.setdefault(worker.number, now_s)

    def contents(self, r: int, worker: Worker) -> tuple[int, ...]:
        size = worker.spec.block_size
        full = [2 * i + 2 if i >= 0 else -2 * i + 1 for i in engine_block_ids(self.w, r, size)]
        rest = [10**12 + r] if int(self.w.prompt_tokens[r]) % size else []
        return tuple(int(i) for i in [*full, *rest])

    def hits(self, worker: Worker, r: int) -> int:
        prompt = int(self.w.prompt_tokens[r])
        return worker.engine.cached_tokens(self.contents(r, worker), prompt)

    def own_s(self, worker: Worker, r: int, cached: int) -> float:
        prompt = int(self.w.prompt_tokens[r])
        cached = min(cached, prompt - 1)
        return worker.costs.prefill_s(cached, prompt - cached)

    def blocks(self, worker: Worker, tokens: int) -> int:
        return -(-tokens // worker.spec.block_size)
