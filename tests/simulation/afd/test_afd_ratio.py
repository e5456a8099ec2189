# SPDX-License-Identifier: Apache-2.0
"""The attention:FFN ratio: an interior optimum, and the two forces that make it.

A 70B model cut to 8 layers, on 10 GPUs with the memory that goes with it; prompts of 1,000 and
answers of 300 tokens in a closed batch that outlasts the window of measurement.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from controller.costs.architecture import llama31_70b
from controller.simulation.afd.costs import h200, roofline_costs
from controller.simulation.afd.pool import AfdPool, FfnSplit
from controller.simulation.afd.run import AfdWindow, simulate_afd
from controller.simulation.lengths import Lengths
from controller.simulation.workloads.rollouts import rollouts

pytestmark = pytest.mark.unit

GPUS = 10
MODEL = replace(llama31_70b(), layers=8)
GPU = replace(h200(), memory_bytes=12e9)
SEQUENCES_A_WORKER = 140
BOTH = pytest.mark.parametrize("split", FfnSplit)


@cache
def serve(attention: int, ffn: int, split: FfnSplit) -> AfdWindow:
    pool = AfdPool(attention, ffn, split)
    workload = rollouts(
        4 * SEQUENCES_A_WORKER * attention,
        1,
        seed=1,
        prompt=Lengths(1000, 0.4, 100, 4000),
        output=Lengths(300, 0.4, 30, 1200),
    )
    run = simulate_afd(workload, roofline_costs(MODEL, GPU, pool), pool)
    return run.window(*np.quantile(run.finish_s, [0.25, 0.75]))


def sweep(split: FfnSplit) -> list[AfdWindow]:
    """Windows of 1:9 to 9:1."""
    return [serve(attention, GPUS - attention, split) for attention in range(1, GPUS)]


def best(split: FfnSplit) -> int:
    return int(np.argmax([window.tokens_per_s for window in sweep(split)]))


@BOTH
def test_throughput_rises_to_an_interior_optimum_and_falls_after_it(split: FfnSplit) -> None:
    rates = np.array([window.tokens_per_s for window in sweep(split)])
    top = best(split)
    assert 0 < top < len(rates) - 1
    assert (np.diff(rates[: top + 1]) > 0).all()
    assert (np.diff(rates[top:]) < 0).all()
    assert max(rates[0], rates[-1]) < 0.7 * rates[top]


@BOTH
def test_before_the_optimum_each_attention_worker_brings_its_own_sequences(
    split: FfnSplit,
) -> None:
    windows = sweep(split)[: best(split)]
    for number, window in enumerate(windows, start=1):
        assert window.sequences / number == pytest.approx(SEQUENCES_A_WORKER, rel=0.15)
        assert window.tokens_per_s / number == pytest.approx(windows[0].tokens_per_s, rel=0.15)


def test_before_the_optimum_further_ffn_workers_are_of_no_use() -> None:
    for split in FfnSplit:
        few, many = serve(3, 3, split), serve(3, 7, split)
        assert many.tokens_per_s < 1.1 * few.tokens_per_s
    # Spread, they idle; as replicas they are busy reading the same weights for fewer tokens.
    assert serve(3, 7, FfnSplit.SPREAD).ffn_busy < 0.4
    assert serve(3, 7, FfnSplit.REPLICAS).ffn_busy > 0.9


@BOTH
def test_after_the_optimum_everybody_waits_for_the_ffn(split: FfnSplit) -> None:
    since = sweep(split)[best(split) :]
    assert (np.diff([window.attention_busy for window in since]) < 0).all()
    assert all(window.ffn_busy > window.attention_busy for window in since[1:])
    assert since[-1].ffn_busy > 0.95
    assert since[-1].attention_busy < 0.3


@BOTH
def test_after_the_optimum_a_further_ffn_worker_is_worth_more_than_an_attention_worker(
    split: FfnSplit,
) -> None:
    now = serve(8, 1, split).tokens_per_s
    assert serve(9, 1, split).tokens_per_s < 1.05 * now
    assert serve(8, 2, split).tokens_per_s > 1.5 * now
