# SPDX-License-Identifier: Apache-2.0
"""A logged vLLM run through the compiled simulator, to compare it with the engine law's own clock.

Pure. Owns: a run of one engine as the simulator's workload and cluster. Does not own: the replay
that the logs are judged by (vllm_replay): it alone stamps when an engine takes a request in, and
spreads requests over data-parallel engines as vLLM's front end does, in lock-step if need be.
"""

from __future__ import annotations

import numpy as np

from controller.costs.tables import Floats
from controller.engine import EngineSpec
from controller.errors import UserError
from controller.simulation.cluster import SimOptions, simulate, uniform_cluster
from controller.simulation.workloads.rows import Heads, numbered, single_rounds
from experiments.vllm_replay import contents
from experiments.vllm_runs import Log
from experiments.vllm_steps import EngineModel


def compiled_tokens(
    log: Log, spec: EngineSpec, model: EngineModel, prefix_share: float
) -> tuple[Floats, Floats]:
    """(n,) first and last token of each request on one engine, seconds on the log's clock."""
    prompts = log.prompt_tokens.tolist()
    blocks = contents(prompts, spec.block_size, prefix_share)
    full = [row[: tokens // spec.block_size] for row, tokens in zip(blocks, prompts, strict=True)]
    ids = np.array([block for row in full for block in row], np.int64)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in full])]).astype(np.int64)
    load = single_rounds(
        "log",
        log.arrival_s,
        log.prompt_tokens,
        log.output_tokens,
        heads=Heads(spec.block_size, numbered(ids), starts),
    )
    result = simulate(load, uniform_cluster(0, 1, spec, model.tables), SimOptions())
    if not result.served.all():
        row = int(np.argmin(result.served))
        raise UserError(f"request {row} of the log: was not served by the compiled simulator")
    return result.first_token_s, result.finish_s
