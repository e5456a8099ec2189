# SPDX-License-Identifier: Apache-2.0
"""A closed loop: a fixed number of clients, each sending its next request when one has ended.

After the workload of the price-of-anarchy paper (arXiv 2606.17081): concurrency C, 5 prompt
templates, 128 input tokens, deterministic generation. The output length and the assignment of
templates are not published: both are arguments, the defaults are assumptions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from controller.simulation.lengths import Lengths, constant
from controller.simulation.traces import TraceError
from controller.simulation.workloads.rows import single_rounds, template_heads
from controller.simulation.workloads.workload import Workload, validate


def closed_loop(
    concurrency: int,
    requests: int,
    seed: int,
    *,
    templates: int = 5,
    prompt_tokens: int = 128,
    output: Lengths = constant(128),
    think_s: float = 0.0,
    block_tokens: int = 16,
) -> Workload:
    """`requests` requests with at most `concurrency` of them in the system at any time.

    Client c sends rows c, c + concurrency, ...: as if free clients took the next row of a common
    list, except that rows are fixed before the run, so that two rules meet the same clients. A
    whole prompt is one of the templates, drawn uniformly.
    """
    for what, value in (
        ("concurrency", concurrency),
        ("requests", requests),
        ("templates", templates),
    ):
        if value < 1:
            raise TraceError(f"closed loop: {what} is {value}: give 1 or more")
    rng = np.random.default_rng(seed)
    row = np.arange(requests)
    follows = row >= concurrency
    heads = template_heads(
        rng.integers(0, templates, requests), np.full(templates, prompt_tokens), block_tokens
    )
    alone = single_rounds(
        f"closed_loop_{concurrency}",
        np.zeros(requests),
        np.full(requests, prompt_tokens),
        output.draw_many(rng, requests),
        heads=heads,
    )
    return validate(
        replace(
            alone,
            arrival_s=np.where(follows, np.nan, 0.0),
            think_s=np.where(follows, think_s, 0.0),
            after=np.where(follows, row - concurrency, -1),
        )
    )
