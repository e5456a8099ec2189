# SPDX-License-Identifier: Apache-2.0
"""Prefill deflection (Kairos, arXiv 2607.02043, sections 4.2 to 4.4).

Owns: the largest safe chunk schedule of a decode worker, the predicted TTFT of the prefill path,
the rule. Does not own: how an engine follows a schedule (simulation/cluster/chunks.py; stock
vLLM has no chunk schedule: there the admission test stays and the engine's own chunking runs).

    TTFT_pf  = (S / chi) * t_pf(chi, S / 2) + sum over own chunks of t_pf(chi_i, done_i)
    TTFT_dec = sum of steps of the largest chunks that keep every step within beta * ITL limit
    deflect  iff TTFT_dec <= alpha * TTFT_pf and TTFT_dec <= TTFT limit

S: prompt tokens waiting at and running on the prefill worker, chi the engine's token budget or
the prompt, S / chi not rounded. Several prefill workers: the least TTFT_pf (not in the paper).
As printed there is no transfer and no decode admission in TTFT_pf, and none is added here.
Batch and context of a decode worker are frozen at the decision. At most one deflected prefill a
decode worker.
"""

from __future__ import annotations

from controller.costs.compiled import compiled
from controller.costs.kernels import step_s
from controller.costs.tables import StepTables
from controller.types import IntArray

LARGEST_LOG2 = 11
SIZES = 5
"""Candidates: 2048, 1024, 512, 256 and 128 tokens."""
MOST_STEPS = 4096
ALPHA = 1.3
BETA = 0.9


@compiled
def prefill_step_s(t: StepTables, chunk: float, done: float) -> float:
    """t_pf(chi, k): a step with nothing but a chunk behind `done` tokens."""
    return step_s(t, 0.0, 0.0, chunk, chunk * (done + 0.5 * chunk))


@compiled
def prefill_path_s(t: StepTables, ahead_tokens: float, prompt: float, budget: float) -> float:
    """TTFT_pf of one prefill worker with `ahead_tokens` (S) in front; the whole prompt counts."""
    chunk = min(budget, prompt)
    total = 0.0
    if ahead_tokens > 0.0:
        total = ahead_tokens / chunk * prefill_step_s(t, chunk, 0.5 * ahead_tokens)
    done = 0.0
    while done < prompt:
        now = min(chunk, prompt - done)
        total += prefill_step_s(t, now, done)
        done += now
    return total


@compiled
def largest_safe(
    t: StepTables,
    batch: float,
    context: float,
    prompt: float,
    most_chunk: float,
    step_limit_s: float,
    counts: IntArray,
) -> float:
    """TTFT_dec and its schedule, as chunks of each size in `counts` (SIZES,); inf: not feasible.

    Sizes above `most_chunk`, the engine's budget beside its decodes, are left out; if none is
    left, 128 is tried and the engine cuts it. Chunks never grow, since all that grows is `done`.
    """
    for k in range(SIZES):
        counts[k] = 0
    size = 0
    while size < SIZES - 1 and float(1 << (LARGEST_LOG2 - size)) > most_chunk:
        size += 1
    done, total = 0.0, 0.0
    for _ in range(MOST_STEPS):
        if done >= prompt:
            return total
        step = _fitting(t, batch, context + done, prompt - done, done, size, step_limit_s)
        if step[0] < 0:
            return float("inf")
        size = step[0]
        counts[size] += 1
        total += step[1]
        done += min(float(1 << (LARGEST_LOG2 - size)), prompt - done)
    return float("inf")


@compiled
def _fitting(
    t: StepTables,
    batch: float,
    context: float,
    left: float,
    done: float,
    size: int,
    limit_s: float,
) -> tuple[int, float]:
    """The largest size from `size` on whose step keeps the limit, with its time; -1: none."""
    for k in range(size, SIZES):
        chunk = min(float(1 << (LARGEST_LOG2 - k)), left)
        taken = step_s(t, batch, context, chunk, chunk * (done + 0.5 * chunk))
        if taken <= limit_s:
            return k, taken
    return -1, 0.0


@compiled
def deflects(decode_s: float, prefill_s: float, limit_s: float, alpha: float) -> bool:
    """The rule, for the best decode worker against the best prefill worker."""
    return decode_s <= alpha * prefill_s and decode_s <= limit_s


@compiled
def best_prefill(
    t: StepTables, ahead_tokens: IntArray, prompt: float, budget: float
) -> tuple[int, float]:
    """(index, TTFT_pf) of the fastest prefill worker; `ahead_tokens` has shape (workers,)."""
    best, best_s = 0, float("inf")
    for i in range(ahead_tokens.size):
        path_s = prefill_path_s(t, float(ahead_tokens[i]), prompt, budget)
        if path_s < best_s:
            best, best_s = i, path_s
    return best, best_s


@compiled
def best_decode(
    t: StepTables,
    batch: IntArray,
    context: IntArray,
    busy: IntArray,
    budget: IntArray,
    only: int,
    prompt: float,
    step_limit_s: float,
    counts: IntArray,
) -> tuple[int, float]:
    """(index, TTFT_dec) of the fastest decode worker, its schedule in `counts`; -1: none.

    The arrays have shape (workers,): running decodes, their KV tokens, deflected prefills there
    already (one at most), step budgets. `only` is the one worker that may be chosen, -1: any.
    """
    best, best_s = -1, float("inf")
    tried = counts[SIZES:]
    for i in range(batch.size):
        if busy[i] > 0 or (only >= 0 and i != only):
            continue
        room = float(budget[i] - batch[i])
        path_s = largest_safe(
            t, float(batch[i]), float(context[i]), prompt, room, step_limit_s, tried
        )
        if path_s < best_s:
            best, best_s = i, path_s
            for k in range(SIZES):
                counts[k] = tried[k]
    return best, best_s


def schedule(counts: IntArray) -> tuple[int, ...]:
    """The chunks of a schedule, one number a step."""
    sizes = [1 << (LARGEST_LOG2 - k) for k in range(SIZES)]
    return tuple(size for size, n in zip(sizes, counts.tolist(), strict=False) for _ in range(n))
