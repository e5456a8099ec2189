# SPDX-License-Identifier: Apache-2.0
"""Who takes part in the next step.

Owns: waiting, pulling and running requests, admission, chunking, preemption. Does not own: the
effects of a step and leases (engine.py), time.

As vLLM v1's scheduler with chunked prefill: one token budget a step, first the running requests
in admission order, then the waiting ones until the first that does not fit. A step in which a
running request lacked blocks admits nobody, otherwise newcomers would take the blocks it needs.
"""

from __future__ import annotations

from controller.costs.model import CostModel
from controller.engine.batch import Batch
from controller.engine.kv import KvManager
from controller.engine.running import RunningSet
from controller.engine.sequence import Sequence, SequenceState
from controller.engine.values import EngineSpec, Pull
from controller.engine.waiting import WaitingQueue


class Scheduler:
    """The queues of one engine and the rules by which requests move between them."""

    __slots__ = (
        "_costs",
        "_emission",
        "_kv",
        "_pulls",
        "_spec",
        "hit_tokens",
        "preemptions",
        "pulling",
        "query_tokens",
        "running",
        "steps",
        "waiting",
    )

    def __init__(self, spec: EngineSpec, costs: CostModel, kv: KvManager) -> None:
        self._spec = spec
        self._emission = spec.emission
        self._costs = costs
        self._kv = kv
        self._pulls: dict[str, Pull] = {}
        self.waiting = WaitingQueue()
        self.running = RunningSet()
        self.pulling = 0
        self.steps = 0
        """Steps begun that held decodes."""
        self.preemptions = 0
        self.hit_tokens = 0
        self.query_tokens = 0

    def compose(self) -> Batch:
        """The next step's batch; pulls that could start are left in `take_pulls`."""
        spec = self._spec
        batch = Batch(spec.max_num_batched_tokens, spec.verified_tokens, self._next_tokens())
        if not spec.prefill_first:
            if self._continue_running(batch):
                self._admit_waiting(batch)
            return batch
        if self._continue_running(batch, decodes=False):
            self._admit_waiting(batch)
        if not batch:
            self._continue_running(batch, prefills=False)
        return batch

    def _next_tokens(self) -> int:
        """Tokens that the next step with decodes brings each of them."""
        p, q = self._emission
        return (self.steps + 1) * p // q - self.steps * p // q

    def take_pulls(self) -> list[Pull]:
        """Pulls admitted since the last call, without those cancelled meanwhile."""
        pulls = list(self._pulls.values())
        self._pulls.clear()
        return pulls

    def finish_pull(self, seq: Sequence) -> None:
        """The KV has arrived (settled by the caller): one prompt token is left, or the prompt
        after its history."""
        self._pulls.pop(seq.request.request_id, None)
        self.pulling -= 1
        self.running.join(seq)
        if seq.pull_pending:
            seq.pull_pending = False
            self.running.start_decoding(seq)
        seq.read_pending = 0

    def remove(self, seq: Sequence) -> None:
        """Forget a live request, wherever it stands, and free its blocks."""
        if seq.state is SequenceState.WAITING:
            self.waiting.remove(seq)
        elif seq.state is SequenceState.PULLING:
            self._pulls.pop(seq.request.request_id, None)
            self.pulling -= 1
        else:
            self.running.remove(seq, SequenceState.GONE)
        seq.state = SequenceState.GONE
        self._kv.free(seq.blocks)

    def _continue_running(self, batch: Batch, decodes: bool = True, prefills: bool = True) -> bool:
        """Running requests in admission order; False if one of them lacked blocks."""
        running = self.running.sequences
        preemptions = self.preemptions
        index = 0
        # Preemption shortens the list from its end, never before `index`.
        while index < len(running) and batch.budget > 0:
            seq = running[index]
            if seq.decoding and decodes and seq.needs_decodes:
                room = seq.computed + batch.emitted <= seq.capacity
                if not room and not self._make_room(seq, batch.emitted):
                    return False
                batch.add_decode(seq)
            elif seq.prefills and prefills:
                tokens = seq.chunk(seq.computed, batch.budget)
                if not self._make_room(seq, tokens):
                    return False
                batch.add_prefill(seq, tokens)
            index += 1
        return self.preemptions == preemptions

    def _make_room(self, seq: Sequence, tokens: int) -> bool:
        """Get blocks for a running request, if need be from the most recently admitted ones.

        The most recent may be the request itself: it then goes back to waiting. Alone it keeps
        what it has and waits: pulling and pinned requests hold the rest, and nobody can take
        theirs away. It fits alone (checked on arrival), so that ends with them.
        """
        while not self._kv.grow(seq, tokens):
            victim = self.running.sequences[-1]
            if victim is seq and len(self.running) == 1:
                return False
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        """By recompute: blocks back, generated tokens become prompt, to the front of the queue."""
        self.preemptions += 1
        self.running.remove(seq, SequenceState.WAITING)
        self._kv.free(seq.blocks)
        seq.lose_kv()
        seq.preempted = True
        self.waiting.push(seq)

    def _admit_waiting(self, batch: Batch) -> None:
        while self.waiting and batch.budget > 0 and self._has_seat():
            seq = self.waiting.head()
            hits = self._kv.find_prefix(seq)
            if not self._admit(seq, hits, batch):
                return

    def _admit(self, seq: Sequence, hits: list[int], batch: Batch) -> bool:
        if seq.pull_pending:
            return self._admit_pull(seq, hits)
        if seq.read_pending > len(hits) * self._spec.block_size:
            return self._admit_read(seq, hits)
        return self._admit_prefill(seq, hits, batch)

    def _has_seat(self) -> bool:
        return len(self.running) + self.pulling < self._spec.max_num_seqs

    def _watermark(self) -> int:
        return self._spec.watermark_blocks if len(self.running) + self.pulling else 0

    def _reserve(self, seq: Sequence, tokens: int) -> int:
        """Blocks for what its first `tokens` leave of the prompt, if they must be free as well."""
        if not self._spec.reserve_prompt:
            return 0
        return self._kv.blocks_for(seq.target) - self._kv.blocks_for(tokens)

    def _admit_prefill(self, seq: Sequence, hits: list[int], batch: Batch) -> bool:
        history = len(hits) * self._spec.block_size
        tokens = seq.chunk(history, batch.budget)
        kept = self._watermark() + self._reserve(seq, history + tokens)
        if not self._kv.admit(seq, hits, history + tokens, kept):
            return False
        self.waiting.remove(seq)
        self._note_hits(seq, history)
        seq.read_pending = 0
        self.running.join(seq)
        batch.add_prefill(seq, tokens)
        return True

    def _admit_pull(self, seq: Sequence, hits: list[int]) -> bool:
        """Room for the whole prompt; what the prefix cache lacks is pulled.

        The last prompt token is computed here anyway, so if it is all that is missing, nothing
        moves and the pull is empty.
        """
        prompt = seq.request.prompt_tokens
        if not self._kv.admit(seq, hits, prompt, self._watermark()):
            return False
        self.waiting.remove(seq)
        history = seq.computed
        self._note_hits(seq, history)
        self._pull(seq, len(hits), prompt - history if prompt - history > 1 else 0)
        return True

    def _admit_read(self, seq: Sequence, hits: list[int]) -> bool:
        """Room for the history; what the prefix cache lacks of it is read."""
        kept = self._watermark() + self._reserve(seq, seq.read_pending)
        if not self._kv.admit(seq, hits, seq.read_pending, kept):
            return False
        self.waiting.remove(seq)
        history = seq.computed
        self._note_hits(seq, history)
        self._pull(seq, len(hits), seq.read_pending - history)
        return True

    def _pull(self, seq: Sequence, hits: int, tokens: int) -> None:
        """Start to move `tokens` tokens behind the blocks that were found here."""
        seq.pull_blocks = len(seq.blocks) - hits if tokens else 0
        seq.state = SequenceState.PULLING
        self.pulling += 1
        request_id = seq.request.request_id
        self._pulls[request_id] = Pull(
            request_id=request_id,
            skip_blocks=hits,
            blocks=seq.pull_blocks,
            tokens=tokens,
            duration_s=self._costs.kv_transfer_s(tokens),
        )

    def _note_hits(self, seq: Sequence, tokens: int) -> None:
        """Count prefix hits once a request: what a recompute finds is its own."""
        if seq.cached_tokens is None:
            seq.cached_tokens = tokens
            self.hit_tokens += tokens
            self.query_tokens += seq.request.prompt_tokens
