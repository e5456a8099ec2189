# SPDX-License-Identifier: Apache-2.0
"""The running requests in admission order, with sums kept up to date.

Owns: membership and the sums over decodes. Does not own: what a step computes.
"""

from __future__ import annotations

from controller.engine.sequence import Sequence, SequenceState


class RunningSet:
    """Running requests; a pulled one counts as admitted when its pull is done."""

    __slots__ = ("decode_kv_tokens", "decodes", "sequences")

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.decodes = 0
        self.decode_kv_tokens = 0
        """KV tokens that the decoding ones hold."""

    def __len__(self) -> int:
        return len(self.sequences)

    def join(self, seq: Sequence) -> None:
        """Append as the most recently admitted."""
        seq.state = SequenceState.RUNNING
        self.sequences.append(seq)

    def start_decoding(self, seq: Sequence) -> None:
        """From now on it decodes."""
        seq.decoding = True
        self.decodes += 1
        self.decode_kv_tokens += seq.computed

    def advance(self, decodes: list[Sequence], tokens: int) -> None:
        """So many more tokens of each are computed."""
        for seq in decodes:
            seq.computed += tokens
            seq.in_flight = tokens
        self.decode_kv_tokens += tokens * len(decodes)

    def leave(self, seq: Sequence, state: SequenceState) -> None:
        """Leave the batch; `sweep` takes the record out of the list later."""
        seq.state = state
        if seq.decoding:
            seq.decoding = False
            self.decodes -= 1
            self.decode_kv_tokens -= seq.computed

    def remove(self, seq: Sequence, state: SequenceState) -> None:
        """Leave at once."""
        self.leave(seq, state)
        if self.sequences[-1] is seq:
            self.sequences.pop()
        else:
            self.sequences.remove(seq)

    def sweep(self) -> None:
        """Take out all that left."""
        self.sequences = [s for s in self.sequences if s.state is SequenceState.RUNNING]
