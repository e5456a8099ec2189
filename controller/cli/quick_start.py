# SPDX-License-Identifier: Apache-2.0
"""What a command that runs once and ends leaves out of its start.

Owns: settings of the interpreter for such a command. Does not own: what is imported when.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_start() -> Iterator[None]:
    """Around everything large that is imported, and what the command does with it.

    - No garbage collection: its passes over the many objects of numba's start find nothing, and
      what a simulation makes, arrays and rows, has no cycles.
    - No BLAS for compiled code: numba looks for scipy's when it loads its first function, which
      imports all of scipy.linalg. Kernels here use none; whoever imports scipy still gets it.
    - No threads in numpy's BLAS: for small problems they wait for each other.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported
    collects = gc.isenabled()
    gc.disable()
    try:
        _decide_without_blas()
        yield
    finally:
        if collects:
            gc.enable()


def _decide_without_blas() -> None:
    """Let numba look for scipy's BLAS while it cannot be found."""
    if "scipy.linalg" in sys.modules:
        return
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules["scipy.linalg"]
