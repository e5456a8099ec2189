# SPDX-License-Identifier: Apache-2.0
"""Memory that NIXL moves: an array in host memory, or a torch tensor on a GPU.

Owns: allocation, a pattern to recognise what arrived. Does not own: registration and transfers.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PERIOD = 8191  # prime: a piece that arrives at the wrong place does not match


class MemoryKind(str, Enum):
    """Where the KV lies; the value is NIXL's name for it."""

    DRAM = "DRAM"
    VRAM = "VRAM"


class Buffer:
    """`size` bytes of one kind; `device` is the GPU's index (0 for host memory)."""

    def __init__(self, kind: MemoryKind, size: int, device: int) -> None:
        self.kind = kind
        self.size = size
        self.device = device if kind is MemoryKind.VRAM else 0
        self._data = _host(size) if kind is MemoryKind.DRAM else _gpu(size, device)

    @property
    def address(self) -> int:
        """Of the first byte."""
        host = self.kind is MemoryKind.DRAM
        return int(self._data.ctypes.data if host else self._data.data_ptr())

    def fill(self) -> None:
        """Write the pattern."""
        self._write(_pattern(self.size))

    def clear(self) -> None:
        """Write zeros, also so that every page exists before the first transfer."""
        self._write(np.zeros(self.size, dtype=np.uint8))

    def holds(self, size: int) -> bool:
        """Whether the first `size` bytes are the pattern."""
        return bool(np.array_equal(self._read(size), _pattern(size)))

    def _write(self, values: NDArray[np.uint8]) -> None:
        if self.kind is MemoryKind.DRAM:
            self._data[:] = values
        else:
            import torch

            self._data.copy_(torch.from_numpy(values))
            torch.cuda.synchronize(self.device)

    def _read(self, size: int) -> NDArray[np.uint8]:
        if self.kind is MemoryKind.DRAM:
            return np.asarray(self._data[:size])
        return np.asarray(self._data[:size].cpu().numpy())


def gpus() -> int:
    """GPUs that torch sees; 0 without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _pattern(size: int) -> NDArray[np.uint8]:
    block = np.random.default_rng(0).integers(1, 256, _PERIOD, dtype=np.uint8)
    return np.resize(block, size)


def _host(size: int) -> Any:
    return np.empty(size, dtype=np.uint8)


def _gpu(size: int, device: int) -> Any:
    import torch

    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
