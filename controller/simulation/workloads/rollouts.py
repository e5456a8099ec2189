# SPDX-License-Identifier: Apache-2.0
"""RL rollouts: a closed batch, all there at the start, whose outputs have a long tail.

The batch ends with its longest answers, on engines that are nearly empty by then: makespan and
the tail's TPOT matter, TTFT hardly does. Lengths are assumptions; `samples` answers to one prompt
share it whole, as in group-relative policy optimisation.
"""

from __future__ import annotations

import numpy as np

from controller.simulation.lengths import Lengths
from controller.simulation.traces import TraceError
from controller.simulation.workloads.rows import single_rounds, template_heads
from controller.simulation.workloads.workload import Workload

_PROMPT = Lengths(500, 0.7, 32, 8_000)
_OUTPUT = Lengths(4_000, 1.1, 64, 32_768)


def rollouts(
    prompts: int,
    samples: int,
    seed: int,
    *,
    prompt: Lengths = _PROMPT,
    output: Lengths = _OUTPUT,
    block_tokens: int = 16,
) -> Workload:
    """`prompts` times `samples` requests at time 0, the samples of a prompt side by side.

    The bound of `output` is the token limit of the rollout: what reaches it is cut off there.
    """
    for what, value in (("prompts", prompts), ("samples", samples)):
        if value < 1:
            raise TraceError(f"rollouts: {what} is {value}: give 1 or more")
    rng = np.random.default_rng(seed)
    tokens = prompt.draw_many(rng, prompts)
    of = np.repeat(np.arange(prompts), samples)
    return single_rounds(
        "rollouts",
        np.zeros(len(of)),
        tokens[of],
        output.draw_many(rng, len(of)),
        heads=template_heads(of, tokens, block_tokens),
    )
