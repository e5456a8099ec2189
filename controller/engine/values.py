# SPDX-License-Identifier: Apache-2.0
"""What goes into the engine law and what comes out of it.

Owns: the frozen values, closed reasons and errors at the boundary between a driver (emulated
worker, simulator) and `Engine`. Does not own: any behaviour.

Times are seconds on the driver's one clock (`_s`). A content is one chained hash per KV block
of a prompt: equal hashes mean an equal prefix up to and with that block. 0 is no content.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction


class RequestTooLarge(ValueError):
    """The request could not run even alone in an empty engine."""


class DuplicateRequest(ValueError):
    """The request id is live, or its blocks are still pinned."""


MOST_EMISSION_STEPS = 100
"""Steps after which a fraction of a token a step has come round (`EngineSpec.emission`)."""


class FinishReason(str, Enum):
    """Why a request ended. Closed: append, never reorder or rename."""

    LENGTH = "length"
    """All tokens were generated (the law knows no end-of-sequence token), or this was a
    prefill leg and its first token is done."""
    KV_LOAD_FAILED = "kv_load_failed"
    """The KV of the prompt could not be pulled; nothing was generated."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine, in vLLM's own terms."""

    block_size: int
    """Tokens of KV a block holds."""
    num_blocks: int
    """KV blocks of the engine."""
    max_num_batched_tokens: int
    """Tokens one step may compute, decodes and prefill chunks together."""
    max_num_seqs: int
    """Requests that may be running or pulling at once."""
    prefix_cache: bool = True
    """False: nothing is registered, so nothing is ever found again."""
    kv_lease_s: float = 30.0
    """Seconds that a finished prefill leg's blocks stay pinned for the decode side."""
    charge_prefill: bool = True
    """False: prompt tokens cost no time (imitates the stock mocker on decode workers)."""
    watermark_blocks: int = 0
    """Blocks that an admission must leave free, unless nobody runs or pulls: room for the
    running requests to grow, so that fewer of them are preempted."""
    prefill_first: bool = False
    """A step with prompt tokens holds no decode: running decodes pause (AMPD's engine, as vLLM
    without chunked prefill)."""
    async_scheduling: bool = False
    """A step is composed when the one before it starts, not when that ends (vLLM's default): what
    arrives or frees a seat during a step counts in the step after the next."""
    reserve_prompt: bool = False
    """An admission needs free blocks for the whole prompt, not only for its first chunk."""
    verified_tokens: int = 1
    """Tokens that a decode computes in a step: the next one and the drafts that are verified with
    it (vLLM: 1 + num_speculative_tokens). They count against the budget."""
    emitted_tokens: float = 1.0
    """Tokens that it gets out of a step, mean: 1 + accepted drafts."""
    cold_start_s: float = 0.0
    """From the start of its process until it serves (weights, graphs). The driver's to wait for."""

    def __post_init__(self) -> None:
        for name in (
            "block_size",
            "num_blocks",
            "max_num_batched_tokens",
            "max_num_seqs",
            "verified_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"EngineSpec.{name} must be at least 1")
        if self.kv_lease_s < 0 or self.cold_start_s < 0:
            raise ValueError("EngineSpec.kv_lease_s and cold_start_s must be at least 0")
        if not 0 <= self.watermark_blocks < self.num_blocks:
            raise ValueError("EngineSpec.watermark_blocks must be below num_blocks")
        if not 1 <= self.emitted_tokens <= self.verified_tokens:
            raise ValueError("EngineSpec.emitted_tokens must be from 1 to verified_tokens")
        if self.verified_tokens > self.max_num_batched_tokens:
            raise ValueError("EngineSpec.verified_tokens must not exceed max_num_batched_tokens")

    @property
    def emission(self) -> tuple[int, int]:
        """(p, q): the engine's first s decode steps bring s*p//q tokens to who is in all of them.

        `emitted_tokens` as a fraction with q up to MOST_EMISSION_STEPS.
        """
        mean = Fraction(self.emitted_tokens).limit_denominator(MOST_EMISSION_STEPS)
        return mean.numerator, mean.denominator

    def most_tokens(self, prompt_tokens: int, output_tokens: int) -> int:
        """KV tokens that a request comes to hold at most: all but the last, and drafts beyond."""
        p, q = self.emission
        return prompt_tokens + output_tokens - 1 + -(-p // q) - 1


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request as it arrives at one worker."""

    request_id: str
    """Unique among the live and pinned requests of the engine."""
    prompt_tokens: int
    """Length of the prompt in tokens, at least 1."""
    max_output_tokens: int
    """Tokens to generate, at least 1; a prefill leg (`hold_kv`) always generates one."""
    contents: tuple[int, ...]
    """One content per block of the prompt, never 0; the last block may be partly filled."""
    hold_kv: bool = False
    """Prefill leg of a hand-over: it finishes with its first token and its blocks stay pinned
    until they are released or the lease ends."""
    pull_kv: bool = False
    """Decode leg of a hand-over: the prompt's KV comes from elsewhere, see `Pull`."""
    history_tokens: int = 0
    """Leading prompt tokens whose KV is read from elsewhere before the rest is computed (AMPD's
    history read): a `Pull` of what the prefix cache lacks of them."""
    priority: int = 0
    """Reserved. Lower is served first (vLLM's sense), FCFS within; it never preempts."""
    chunks: tuple[int, ...] = ()
    """Most prompt tokens in its first, second, ... step (deflection: a prefill in chunks that the
    running decodes can bear). The last one holds for all further steps; empty: no cap."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A KV transfer into this engine that the driver has to perform and report back."""

    request_id: str
    """The decode leg it is for, or the prefill that reads its history."""
    skip_blocks: int
    """Leading prompt blocks that the local prefix cache holds already."""
    blocks: int
    """Prompt blocks to move, after the skipped ones. 0: nothing to move, but the source still
    waits to be told that its blocks are free."""
    tokens: int
    """Prompt tokens to move."""
    duration_s: float
    """Seconds the transfer takes."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one request got out of one step (or out of a failed pull)."""

    request_id: str
    """The request."""
    tokens: int
    """Newly generated tokens, all at the end of the step: 1, with speculative decoding also more;
    0 with an error."""
    finish: FinishReason | None
    """None while it goes on."""
    cached_tokens: int
    """Prompt tokens that came out of this worker's prefix cache at the first admission."""


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step, with the fields of Dynamo's ForwardPassMetrics (scheduled)."""

    start_s: float
    """When it began."""
    duration_s: float
    """Seconds it takes."""
    prefill_requests: int
    """Requests that compute prompt tokens (or recompute after a preemption)."""
    prefill_tokens: int
    """Prompt tokens computed, without cached and earlier ones."""
    prefill_kv_tokens: int
    """KV tokens of history that the prefill chunks read."""
    decode_requests: int
    """Requests that decode, among them decode legs right after their pull."""
    decode_kv_tokens: int
    """KV tokens those hold at the start of the step."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A snapshot of the engine."""

    waiting_requests: int
    """Requests never admitted so far."""
    waiting_tokens: int
    """Prompt tokens of those, raw (cache hits are unknown until admission)."""
    running_requests: int
    """Admitted requests, prefilling or decoding; without pulling ones."""
    decoding_requests: int
    """Those of them that take one token a step."""
    decode_kv_tokens: int
    """KV tokens the decoding ones hold."""
    preempted_requests: int
    """Requests thrown out of the batch that wait to be recomputed."""
    preempted_kv_tokens: int
    """Tokens of context (prompt and generated) those have to recompute."""
    pulling_requests: int
    """Requests whose KV is on its way here."""
    pinned_requests: int
    """Finished prefill legs that wait for their decode side."""
    pinned_blocks: int
    """Distinct blocks those hold."""
    free_blocks: int
    """Blocks that can be allocated, cached but unused ones included."""
    prefix_hit_tokens_total: int
    """Prompt tokens found in the prefix cache, first admissions only."""
    prefix_query_tokens_total: int
    """Prompt tokens looked up there, first admissions only."""
    preemptions_total: int
    """Preemptions so far."""


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One change of what the prefix cache offers."""

    stored: bool
    """True: this content can be found from now on; False: no more."""
    block_id: int
    """The block that holds, or held, it."""
    content: int
    """The content (the request's own hash, whatever a stale pull really brought)."""
    parent: int | None
    """Stored: content of the block before it in the prompt; None for the first block."""
    index: int
    """Stored: index of the block in the prompt of `request_id`; removed: -1."""
    request_id: str | None
    """Stored: the request whose prompt it came from; removed: None."""
