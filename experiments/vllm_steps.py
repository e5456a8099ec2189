# SPDX-License-Identifier: Apache-2.0
"""What a step of a logged vLLM run takes, from operator measurements and a few shared constants.

Pure. Owns: what is added to composed operators to get a real engine's step, with the reasons, and
what data-parallel ranks do together. Does not own: composition (controller.costs.compose), the
engine law, the replay.

Operator times are kernel times (CUDA activity): they hold no launch, so nothing is taken off for
CUDA graphs. Added are

- graphs: vLLM captures 1, 2, 4, 8, 16, ... up to twice max_num_seqs (512 at most) and pads to them;
- collectives by the ring's formula over the link of simulator_config: two all-reduces a layer,
  one for the embedding, a gather of the logits of every sampled sequence. The link's latency is
  taken as that of a small all-reduce, all hops together: in the Qwen log a decode step of one
  sequence leaves 24 us for each;
- `Overheads`: constants found in logs, the same for every run, model and GPU.

The batch's mean context stands for all its sequences: skewed contexts cost up to 10 % more in
decode steps of 38 to 64 sequences of the Llama log, none to 2 % elsewhere.

Data-parallel engines of a dense model do not meet. With expert parallelism they go in lock-step:
every layer gathers all ranks' tokens (hidden state and router logits), computes the local experts
and scatters the sums back; a rank without work takes part with one token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from controller.costs.architecture import Architecture
from controller.costs.collectives import Link, all_gather_s, all_reduce_s
from controller.costs.compose import ComposeOptions, compose, expert_s
from controller.costs.curves import Curve
from controller.costs.kernels import padded
from controller.costs.memory import MemoryBudget, kv_blocks
from controller.costs.op_profiles import OpFit
from controller.costs.profile_fields import Parallelism
from controller.costs.tables import StepTables, vector
from experiments.vllm_runs import Run

_ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Overheads:
    """Time that operators do not hold, and what the logs do not say about their prompts.

    `step_s` is taken by every step: gaps between kernels, sampling's small kernels, the copy of
    the sampled tokens. `eager_s` is added to a step that is larger than the largest graph. In the
    Llama log such steps take 2 to 9 ms more than their kernels, whatever their size; the cause is
    not known (assumed: launches one by one, and other GEMM kernels and clocks than in a short
    measurement). Both are fitted on all logs at hand by fit_overheads.py.
    `prefix_share` is the share of all prompt tokens that repeat an earlier prompt, for prefix
    caching to find: these logs do not hold the prompts. It was counted, not fitted: in the Qwen
    log 126 prompts passed 51 steps that were full to the budget and had room for 3 % less, later
    prompts have more to repeat; in the Llama log steps too short for their prompts lack at least
    2.8 %.
    """

    step_s: float
    eager_s: float
    prefix_share: float


OVERHEADS = Overheads(step_s=0.7e-3, eager_s=4.3e-3, prefix_share=0.04)


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """vLLM's CUDA graph sizes: 1, 2, 4, every eighth to 256, every sixteenth beyond."""
    top = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    sizes = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
    return tuple(size for size in sizes if size <= top)


@dataclass(frozen=True, slots=True)
class Together:
    """What the ranks of an expert-parallel group compute together in a step."""

    model: Architecture
    ops: OpFit
    ranks: int
    link: Link
    sizes: tuple[int, ...]
    eager_s: float

    def extra_s(self, tokens: list[int]) -> float:
        """All expert layers of a step in which the ranks hold `tokens`; 0 counts as a dummy's 1."""
        held = np.array([padded(vector(self.sizes), max(1, count)) for count in tokens])
        total = float(held.sum())
        layout = Parallelism(ep=self.ranks)
        assert self.ops.moe is not None
        experts = expert_s(self.model, self.ops.moe, layout, vector([total / self.ranks]))[0]
        # The rank with the fewest tokens receives the most.
        remote = (total - held.min()) * self.ranks / (self.ranks - 1)
        row = self.model.hidden * _ACTIVATION_BYTES
        routed = row + self.model.experts * _ACTIVATION_BYTES
        meet = sum(all_gather_s(self.link, self.ranks, remote * size) for size in (routed, row))
        eager = self.eager_s if max(tokens) > max(self.sizes, default=0) else 0.0
        return self.model.moe_layers * (float(experts) + meet) + eager


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One data-parallel rank (all its tensor ranks), and what the ranks do together, if they do."""

    tables: StepTables
    together: Together | None
    num_blocks: int


def engine_model(run: Run, model: Architecture, ops: OpFit, overheads: Overheads) -> EngineModel:
    """The step model of a run. `ops` were measured at the run's tensor parallel degree."""
    sizes = capture_sizes(run.max_num_seqs, run.max_num_batched_tokens) if run.graphs else ()
    options = ComposeOptions(
        max_num_batched_tokens=run.max_num_batched_tokens,
        link=hop(run.link, run.tp * run.dp),
        host_step_s=overheads.step_s,
        capture_sizes=sizes,
    )
    ranks = run.tp * run.dp if run.expert_parallel and model.experts else 1
    lock_step = ranks > 1 and run.dp > 1
    layout = Parallelism(tp=run.tp, ep=1 if lock_step else ranks)
    own = replace(model, experts=0) if lock_step else model
    tables = _ends(compose(own, ops, layout, options), model, run)
    blocks = run.num_blocks or _blocks(run, model, ranks)
    if not lock_step:
        return EngineModel(_eager(tables, overheads.eager_s), None, blocks)
    together = Together(model, ops, ranks, hop(run.link, ranks), sizes, overheads.eager_s)
    return EngineModel(tables, together, blocks)


def hop(link: Link, ranks: int) -> Link:
    """The link with the latency of one of the 2*(ranks - 1) hops of an all-reduce."""
    return Link(link.latency_s / max(1, 2 * (ranks - 1)), link.bandwidth_bytes_s)


def _blocks(run: Run, model: Architecture, ranks: int) -> int:
    budget = MemoryBudget(
        memory_bytes=run.memory_bytes,
        utilisation=run.utilisation,
        block_size=run.block_size,
        max_num_batched_tokens=run.max_num_batched_tokens,
        max_num_seqs=run.max_num_seqs,
    )
    return kv_blocks(model, Parallelism(tp=run.tp, ep=ranks), budget)


def _ends(tables: StepTables, model: Architecture, run: Run) -> StepTables:
    """With the collectives before the first layer and after the last one."""
    if run.tp == 1:
        return tables
    link = hop(run.link, run.tp)
    row, logits = model.hidden * _ACTIVATION_BYTES, model.vocab * _ACTIVATION_BYTES
    embedding = [all_reduce_s(link, run.tp, n * row) for n in tables.dense_tokens]
    gather = [all_gather_s(link, run.tp, n * logits) for n in tables.sequences]
    return tables._replace(
        dense_s=tables.dense_s + vector(embedding), sequence_s=tables.sequence_s + vector(gather)
    )


def _eager(tables: StepTables, eager_s: float) -> StepTables:
    """With a step up in the dense table behind the largest graph."""
    top = max(tables.capture_sizes, default=0.0)
    dense = Curve(tables.dense_tokens, tables.dense_s)
    points = np.unique(np.concatenate([tables.dense_tokens, [top, top + 1.0]]))
    values = dense(points) + np.where(points > top, eager_s, 0.0)
    return tables._replace(dense_tokens=points, dense_s=values)
