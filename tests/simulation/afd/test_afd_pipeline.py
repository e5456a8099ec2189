# SPDX-License-Identifier: Apache-2.0
"""The micro-batch pipeline against a definition by recursion, and against closed forms."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.costs.architecture import Architecture, llama31_70b
from controller.costs.tables import linear_tables
from controller.simulation.afd.costs import AfdLaw, h200, roofline_costs
from controller.simulation.afd.pipeline import (
    LayerTimes,
    advance_layer,
    advance_layers,
    advance_steps,
    fixed_times,
    new_scratch,
    new_stations,
    steady_step_s,
)
from controller.simulation.afd.pool import AfdError, AfdPool, FfnSplit

pytestmark = pytest.mark.unit


def make_law(
    ffn_read_s: float = 4.0,
    latency_s: float = 0.0,
    link_token_s: float = 0.0,
    ffn_link_token_s: float = 0.0,
) -> AfdLaw:
    """Attention 2 + b + c/100, FFN 1 + max(ffn_read_s, t/2) seconds; no head."""
    knee = 2 * ffn_read_s
    return AfdLaw(
        attention=linear_tables(2.0, 1.0, 0.01, 0.0, 0.0, 1, 0.0, 1.0, 1.0),
        ffn_tokens=np.array([0.0, knee, 2 * knee]),
        ffn_s=np.array([1 + ffn_read_s, 1 + ffn_read_s, 1 + 2 * ffn_read_s]),
        head_sequences=np.zeros(0),
        head_s=np.zeros(0),
        link_latency_s=latency_s,
        link_token_s=link_token_s,
        ffn_link_token_s=ffn_link_token_s,
    )


class Definition:
    """The law of the module's docstring, top down, with every FFN worker on its own."""

    def __init__(
        self,
        law: AfdLaw,
        times: LayerTimes,
        layers: int,
        batch: np.ndarray,
        ffn_workers: int,
        steps: int,
    ) -> None:
        self.law, self.times, self.batch = law, times, batch
        self.ffn_workers = ffn_workers
        micro_batches, self.workers = batch.shape
        # (micro-batch, the step whose head it is or None) in the order of the law.
        self.turns: list[tuple[int, int | None]] = []
        for step in range(steps):
            for layer in range(layers):
                for k in range(micro_batches):
                    if layer == 0 and step > 0:
                        self.turns.append((k, step - 1))
                    self.turns.append((k, None))
        self.turns += [(k, steps - 1) for k in range(micro_batches)]
        for name in ("attention", "send", "receive", "compute", "sent", "back"):
            setattr(self, name, cache(getattr(self, f"_{name}")))

    def before(self, turn: int, a: int | None = None) -> int | None:
        """The turn before this one in which worker a (anybody) has a sequence."""
        for earlier in range(turn - 1, -1, -1):
            k = self.k(earlier)
            tokens = self.batch[k].sum() if a is None else self.batch[k, a]
            if tokens > 0:
                return earlier
        return None

    def k(self, turn: int) -> int:
        return self.turns[turn][0]

    def is_head(self, turn: int) -> bool:
        return self.turns[turn][1] is not None

    def same(self, turn: int) -> int | None:
        """The micro-batch's turn before this one."""
        earlier = [t for t in range(turn) if self.k(t) == self.k(turn)]
        return earlier[-1] if earlier else None

    def _attention(self, turn: int, a: int) -> float:
        """End of the attention worker's stage: a layer, or the head."""
        k = self.k(turn)
        before = self.before(turn, a)
        free = 0.0 if before is None else self.attention(before, a)
        same = self.same(turn)
        back = 0.0 if same is None else self.back(same, a)
        took = self.times.head_s if self.is_head(turn) else self.times.attention_s
        return max(free, back) + took[k, a]

    def link_turn(self, turn: int, a: int | None = None) -> int | None:
        before = self.before(turn, a)
        while before is not None and self.is_head(before):
            before = self.before(before, a)
        return before

    def _send(self, turn: int, a: int) -> tuple[float, float]:
        """When the worker's message starts and ends on its own link."""
        before = self.link_turn(turn, a)
        free = 0.0 if before is None else self.send(before, a)[1]
        start = max(free, self.attention(turn, a))
        return start, start + self.law.link_token_s * self.batch[self.k(turn), a]

    def _receive(self, turn: int, f: int) -> tuple[float, float]:
        """When FFN worker f has everything, and when its receiving side is free again."""
        k = self.k(turn)
        before = self.link_turn(turn)
        free = 0.0 if before is None else self.receive(before, f)[1]
        there = 0.0
        for a in sorted(np.flatnonzero(self.batch[k]), key=lambda a: self.send(turn, a)[0]):
            start, end = self.send(turn, a)
            moving = self.law.ffn_link_token_s * self.batch[k, a]
            free = max(free, start + self.law.link_latency_s) + moving
            there = max(there, end + self.law.link_latency_s, free)
        return there, free

    def _compute(self, turn: int, f: int) -> float:
        k = self.k(turn)
        before = self.link_turn(turn)
        free = 0.0 if before is None else self.compute(before, f)
        return max(free, self.receive(turn, f)[0]) + self.times.ffn_s[k]

    def _sent(self, turn: int, f: int, a: int) -> tuple[float, float]:
        """When FFN worker f's message to worker a starts and ends on f's link."""
        k = self.k(turn)
        earlier = [b for b in np.flatnonzero(self.batch[k]) if b < a]
        before = self.link_turn(turn)
        if earlier:
            start = self.sent(turn, f, earlier[-1])[1]
        else:
            last = None if before is None else np.flatnonzero(self.batch[self.k(before)])[-1]
            free = 0.0 if before is None else self.sent(before, f, last)[1]
            start = max(free, self.compute(turn, f))
        return start, start + self.law.ffn_link_token_s * self.batch[k, a]

    def _back(self, turn: int, a: int) -> float:
        """When the micro-batch is at worker a again."""
        if self.is_head(turn):
            return self.attention(turn, a)
        return self._received(turn, a)[1]

    def _received(self, turn: int, a: int) -> tuple[float, float]:
        k = self.k(turn)
        before = self.link_turn(turn, a)
        free = 0.0 if before is None else self._received(before, a)[0]
        messages = [self.sent(turn, f, a) for f in range(self.ffn_workers)]
        first = min(start for start, _ in messages) + self.law.link_latency_s
        last = max(end for _, end in messages) + self.law.link_latency_s
        free = max(free, first) + self.law.link_token_s * self.batch[k, a]
        return free, max(free, last)

    def step_end(self, step: int) -> float:
        heads = [turn for turn, (_, head) in enumerate(self.turns) if head == step]
        return max(
            self.back(turn, a)
            for turn in heads
            for a in range(self.workers)
            if self.batch[self.k(turn), a] > 0
        )


EIGHTHS = st.integers(0, 40).map(lambda n: n / 8)
LAWS = st.builds(
    make_law, latency_s=EIGHTHS, link_token_s=EIGHTHS.map(lambda s: s / 8), ffn_link_token_s=EIGHTHS
)
POOLS = st.tuples(st.integers(1, 3), st.integers(1, 4)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(0, 6), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


@settings(max_examples=200, deadline=None)
@given(LAWS, POOLS, st.integers(1, 3), st.integers(1, 3), st.integers(0, 9999))
def test_every_step_ends_when_the_definition_says(
    law: AfdLaw, pool: list[list[int]], layers: int, ffn_workers: int, seed: int
) -> None:
    batch = np.array(pool)
    batch[0, 0] = max(1, batch[0, 0])
    rng = np.random.default_rng(seed)
    times = LayerTimes(
        rng.integers(0, 80, batch.shape) / 8,
        rng.integers(0, 80, batch.shape) / 8,
        rng.integers(0, 80, len(batch)) / 8,
    )
    found = advance_steps(law, new_stations(*batch.shape), times, layers, batch, 3)
    definition = Definition(law, times, layers, batch, ffn_workers, steps=3)
    assert found == pytest.approx([definition.step_end(step) for step in range(3)], abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(LAWS, POOLS, st.integers(2, 60), st.integers(0, 9999))
def test_layers_that_are_jumped_over_would_have_ended_then(
    law: AfdLaw, pool: list[list[int]], layers: int, seed: int
) -> None:
    batch = np.array(pool)
    rng = np.random.default_rng(seed)
    times = LayerTimes(
        rng.uniform(0, 2, batch.shape),
        rng.uniform(0, 2, batch.shape),
        rng.uniform(0, 2, len(batch)),
    )
    jumped, walked = new_stations(*batch.shape), new_stations(*batch.shape)
    advance_layers(law, jumped, times, batch, layers, new_scratch(batch.shape[1]))
    scratch = new_scratch(batch.shape[1])
    for _ in range(layers):
        for k in range(len(batch)):
            advance_layer(law, walked, times, k, batch[k], scratch)
    assert jumped.clock_s == pytest.approx(walked.clock_s, abs=1e-9)
    assert jumped.busy_s == pytest.approx(walked.busy_s, abs=1e-9)


def test_one_micro_batch_alternates_and_hides_nothing() -> None:
    law = make_law(4.0, latency_s=0.25, link_token_s=0.125, ffn_link_token_s=0.125)
    batch, context = np.array([[4]]), np.array([[400]])
    attention, ffn, link = 2 + 4 + 4, 1 + 4, 0.25 + 4 * 0.125
    assert steady_step_s(law, 5, batch, context) == pytest.approx(5 * (attention + ffn + 2 * link))


@pytest.mark.parametrize("micro_batches", [2, 3, 4])
@pytest.mark.parametrize("ffn_read_s", [1.0, 9.0, 30.0])
@pytest.mark.parametrize("latency_s", [0.0, 6.0])
def test_equal_micro_batches_take_the_longest_cycle(
    micro_batches: int, ffn_read_s: float, latency_s: float
) -> None:
    """Per layer: the busier station for all micro-batches, or one micro-batch's way around."""
    law = make_law(ffn_read_s, latency_s)
    batch = np.full((micro_batches, 1), 4)
    attention, ffn = 2 + 4 + 4, 1 + max(ffn_read_s, 4 * 0.5)
    around = attention + ffn + 2 * latency_s
    longest = max(micro_batches * attention, micro_batches * ffn, around)
    assert steady_step_s(law, 6, batch, 100 * batch) == pytest.approx(6 * longest)


def test_the_slowest_attention_worker_paces_the_others() -> None:
    law = make_law(1.0)
    even = np.full((2, 2), 5)
    uneven = np.array([[8, 2], [8, 2]])
    assert steady_step_s(law, 4, uneven, 100 * uneven) > steady_step_s(law, 4, even, 100 * even)
    assert uneven.sum() == even.sum()


def test_a_full_link_is_the_bottleneck_when_it_is_the_longest() -> None:
    law = make_law(link_token_s=10.0, ffn_link_token_s=1.0)
    batch = np.full((3, 2), 4)
    assert steady_step_s(law, 8, batch, 100 * batch) == pytest.approx(8 * 3 * 40, rel=0.05)


def test_the_times_of_a_layer_are_rooflines() -> None:
    model, gpu = llama31_70b(), h200()
    law = roofline_costs(model, gpu, AfdPool(4, 2)).law
    batch, context = np.array([[10, 0, 900, 0]]), np.array([[20_000, 0, 9_000, 0]])
    times = fixed_times(law, batch, context)
    weights = model.attention_parameters * 2.0
    reading = weights / gpu.memory_bytes_s
    computing = 900 * weights / gpu.flops_s
    kv = 4096 / gpu.memory_bytes_s
    assert reading < computing
    assert times.attention_s[0].tolist() == pytest.approx(
        [10e-6 + reading + 20_000 * kv, 0.0, 10e-6 + computing + 9_000 * kv, 0.0]
    )
    ffn_weights = 3 * 8192 * 28672 * 2.0
    assert times.ffn_s[0] == pytest.approx(10e-6 + 455 * ffn_weights / gpu.flops_s)
    few = fixed_times(law, np.array([[10, 0, 0, 0]]), np.array([[20_000, 0, 0, 0]]))
    assert few.ffn_s[0] == pytest.approx(10e-6 + ffn_weights / gpu.memory_bytes_s)
    assert few.head_s[0, 0] == pytest.approx(128_256 * 8192 * 2 / gpu.memory_bytes_s)


def test_kv_fills_what_the_attention_weights_leave() -> None:
    costs = roofline_costs(llama31_70b(), h200(), AfdPool(4, 2))
    weights = 2 * (80 * llama31_70b().attention_parameters + 2 * 128_256 * 8192)
    assert costs.kv_tokens == int((0.9 * 141e9 - weights) / 327_680)


def test_spread_workers_read_their_share_and_get_every_token_of_a_dense_ffn() -> None:
    model, gpu = llama31_70b(), h200()
    whole = roofline_costs(model, gpu, AfdPool(4, 4)).law
    spread = roofline_costs(model, gpu, AfdPool(4, 4, FfnSplit.SPREAD)).law
    assert whole.ffn_s[0] - 10e-6 == pytest.approx(4 * (spread.ffn_s[0] - 10e-6))
    assert spread.link_token_s == pytest.approx(4 * whole.link_token_s)
    assert spread.ffn_link_token_s == pytest.approx(4 * whole.ffn_link_token_s)


def qwen3_235b() -> Architecture:
    """Its shape as published, with FP8 weights."""
    return Architecture(
        "Qwen3-235B-A22B", 94, 4096, 64, 4, 128, 12_288, 151_936, 128, 8, 1536, weight_bytes=1.0
    )


def test_few_tokens_hit_few_experts() -> None:
    model, gpu = qwen3_235b(), h200()
    law = roofline_costs(model, gpu, AfdPool(1, 4, FfnSplit.SPREAD)).law
    all_experts = 128 * model.expert_parameters / gpu.memory_bytes_s / 4
    one, many = (
        fixed_times(law, np.array([[n]]), np.array([[n]])).ffn_s[0] - 10e-6 for n in (1, 64)
    )
    assert one == pytest.approx(all_experts * 8 / 128)
    assert many == pytest.approx(all_experts * (1 - (1 - 8 / 128) ** 64), rel=1e-3)
    # A token's 8 experts lie on 4 * (1 - (3/4)^8) of the 4 workers.
    assert law.link_token_s * 50e9 / (4096 * 2) == pytest.approx(4 * (1 - 0.75**8))


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AfdError, match="spread them over more FFN workers"):
        roofline_costs(qwen3_235b(), h200(), AfdPool(4, 4))
    with pytest.raises(AfdError, match="and 1 hold them: spread them"):
        roofline_costs(qwen3_235b(), h200(), AfdPool(4, 1, FfnSplit.SPREAD))
    roofline_costs(qwen3_235b(), h200(), AfdPool(4, 2, FfnSplit.SPREAD))
    with pytest.raises(AfdError, match="leave no memory for KV"):
        small = replace(h200(), memory_bytes=20e9)
        roofline_costs(llama31_70b(), small, AfdPool(1, 8, FfnSplit.SPREAD))


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0)])
def test_a_pool_needs_both_kinds_of_workers(wrong: tuple[int, int]) -> None:
    with pytest.raises(AfdError, match="every count must be at least 1"):
        AfdPool(*wrong)
