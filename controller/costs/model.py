# SPDX-License-Identifier: Apache-2.0
"""Predicted times for Python callers: the `CostModel` protocol and its one implementation.

Owns: the protocol that placement, the engine law and the planner speak, and `TableCost`, which
evaluates `StepTables` through the compiled kernels. Does not own: the law itself (kernels), files
(profile). All results are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controller.costs import calls
from controller.costs.tables import EMITTED, MAX_CHUNK, VERIFIED, Floats, StepTables, pack
from controller.costs.tables import scaled as scaled_tables


class CostModel(Protocol):
    """What placement, the engine law and the planner need to know about time (seconds)."""

    def step_s(self, batch: int, context: int, chunk: int, chunk_pairs: float) -> float:
        """One engine step. `chunk_pairs` is the sum of chunk*(history + chunk/2)."""
        ...

    def prefill_s(self, history: int, increment: int) -> float:
        """A whole prefill of `increment` tokens on top of `history`, alone on a worker."""
        ...

    def kv_transfer_s(self, tokens: int) -> float:
        """Moving the KV of `tokens` tokens between two workers; 0 for 0 tokens."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TableCost:
    """`CostModel` over `StepTables`; a call takes about a microsecond.

    Compiled callers take `tables` and call controller.costs.kernels themselves.
    """

    tables: StepTables
    _data: Floats = field(init=False, repr=False)
    _bounds: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        data, bounds = pack(self.tables)
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_bounds", bounds)
        # Compiled here, not at a worker's first step: that would stop its event loop for seconds.
        self.step_s(1, 1, 1, 0.5)
        self.prefill_s(0, 1)
        self.kv_transfer_s(1)
        self.prefills_s(1, np.zeros(1, np.int64))

    def step_s(self, batch: int, context: int, chunk: int, chunk_pairs: float) -> float:
        sizes = float(batch), float(context), float(chunk), float(chunk_pairs)
        return calls.step_s(self._data, self._bounds, *sizes)

    def prefill_s(self, history: int, increment: int) -> float:
        return calls.prefill_s(self._data, self._bounds, float(history), float(increment))

    def kv_transfer_s(self, tokens: int) -> float:
        return calls.transfer_s(self._data, self._bounds, float(tokens))

    def decode_step_s(self, batch: int, context: int) -> float:
        """One decode step of `batch` sequences holding `context` KV tokens in all."""
        return self.step_s(batch, context, 0, 0.0)

    def mixed_step_s(self, batch: int, total_context: int, chunk: int, history: int) -> float:
        """One step of `batch` decodes and one prompt chunk on `history` tokens."""
        return self.step_s(batch, total_context, chunk, chunk * (history + chunk / 2))

    def extrapolates(self, batch: int, context: int, chunk: int, chunk_pairs: float) -> bool:
        """Whether that step lies outside what the tables were fitted on."""
        sizes = float(batch), float(context), float(chunk), float(chunk_pairs)
        return calls.extrapolates(self._data, self._bounds, *sizes)

    def steps_s(
        self, batch: ArrayLike, context: ArrayLike, chunk: ArrayLike, chunk_pairs: ArrayLike
    ) -> Floats:
        """`step_s` over arrays that broadcast against each other; their shape comes back."""
        given = np.broadcast_arrays(batch, context, chunk, chunk_pairs)
        flat = [np.ascontiguousarray(values, dtype=np.float64).ravel() for values in given]
        b, c, chunks, pairs = flat
        out = np.empty(b.size)
        calls.steps_s(self._data, self._bounds, b, c, chunks, pairs, out)
        return out.reshape(given[0].shape)

    def prefills_s(self, prompt: int, cached: NDArray[np.int64]) -> Floats:
        """`prefill_s` of one prompt where `cached` tokens of it are found, shape (n,)."""
        out = np.empty(cached.size)
        calls.prefills_s(self._data, self._bounds, prompt, cached, out)
        return out

    @property
    def packed(self) -> tuple[Floats, NDArray[np.int64]]:
        """The tables as compiled functions take them cheaply (calls.unpack)."""
        return self._data, self._bounds

    @property
    def max_chunk_tokens(self) -> int:
        """Prompt tokens in one step of a prefill that has the worker for itself."""
        return int(self.tables.options[MAX_CHUNK])

    @property
    def verified_tokens(self) -> int:
        """Tokens that a decode step computes a sequence: the next one and drafts."""
        return int(self.tables.options[VERIFIED])

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decode step emits a sequence, mean; above 1 with speculative decoding."""
        return float(self.tables.options[EMITTED])

    def scaled(self, slowdown: float) -> TableCost:
        """The same worker with every computing time multiplied by `slowdown`."""
        return TableCost(scaled_tables(self.tables, slowdown))
