# SPDX-License-Identifier: Apache-2.0
"""The engine law: what one vLLM-v1-like worker does in one step.

Owns: batch composition, chunked prefill, KV blocks and prefix cache, preemption, hand-over
leases, step time. Does not own: clocks, transfers, tokens, sockets. It reads no clock and does
no I/O; a live emulated worker (wall clock) and a simulator (virtual time) drive the same code.

The law, each with what it follows in vLLM v1:

- **Step.** Continuous batching under one token budget (`max_num_batched_tokens`) and one limit
  of requests (`max_num_seqs`). First the running requests in admission order: a decode takes
  one token, an unfinished prefill what is left of it or of the budget. Then the waiting ones,
  first come first served, while budget, seats and blocks allow; the first that does not fit
  blocks those behind it. Prefill chunks and decodes share the step. A request that arrives
  during a step is considered in the next.
  With `prefill_first` a step that holds prompt tokens holds no decode. A request may cap its own
  chunks, and a watermark may keep blocks free of admissions. With `async_scheduling` a step is
  composed when the one before it starts: the scheduler runs beside the GPU and counts on the
  tokens that are under way, so an arrival or a free seat waits one step more.
- **Tokens.** The step that computes the last prompt token yields the first output token at its
  end, each later step one more, up to `max_output_tokens`; there is no end-of-sequence token.
- **Speculative decoding.** A decode computes `verified_tokens` in a step (budget and, through the
  cost tables, time) and gets `emitted_tokens` of them on average. Acceptance is at its mean: the
  first s steps with decodes bring floor(s * mean) tokens to each, so of consecutive steps the same
  number to all. Blocks are taken for the tokens that stay, not for drafts that will be rejected
  (vLLM frees nothing of those either: the next step writes over them). Drafts past the last token
  are computed and thrown away. (Leviathan et al. 2023, section 3.1, has the mean for an acceptance
  rate; vLLM schedules 1 + num_speculative_tokens tokens a decode.)
- **Time.** `costs.step_s(batch, context, chunk, chunk_pairs)` over the decodes, the KV tokens
  they hold at the start, the prompt tokens, and the sum of `chunk * (history + chunk/2)`. With
  `charge_prefill=False` the last two are 0 for the duration, not for the report.
- **Blocks and prefix cache.** kv.py and blocks.py.
- **Preemption.** A running request that lacks blocks takes them from the most recently admitted
  one, which is recomputed: its blocks are freed, its generated tokens become prompt, it goes to
  the front of the queue, and tokens already delivered are not delivered again. vLLM lets a
  request that is alone preempt itself; here it keeps what it has and waits for pins and pulls
  to end, which is sooner.
- **Pull** (decode leg). Admission allocates the whole prompt and emits a `Pull`. It takes a seat
  but no budget. When it is done, one prompt token is left, which counts as a decode. If it was
  preempted afterwards, it recomputes locally.
- **History read** (prefill leg, AMPD). Admission allocates the history's blocks and emits a `Pull`
  of what the prefix cache lacks of it; the rest is computed when that is there. A seat is taken
  meanwhile, no budget. After a preemption it recomputes. Stock vLLM has no such leg (handover.md):
  its prefill worker computes whatever its own prefix cache lacks.
- **Hold** (prefill leg). It finishes with its first token; its blocks stay pinned until
  `release`, or until the lease ends and `expire` is called. Then they are free but keep what
  they hold until reused: a reader that comes late may get another prompt's KV, without error.
"""

from controller.engine.engine import Engine
from controller.engine.values import (
    CacheEvent,
    DuplicateRequest,
    EngineLoad,
    EngineRequest,
    EngineSpec,
    FinishReason,
    Output,
    Pull,
    RequestTooLarge,
    Step,
)

__all__ = [
    "CacheEvent",
    "DuplicateRequest",
    "Engine",
    "EngineLoad",
    "EngineRequest",
    "EngineSpec",
    "FinishReason",
    "Output",
    "Pull",
    "RequestTooLarge",
    "Step",
]
