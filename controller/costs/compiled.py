# SPDX-License-Identifier: Apache-2.0
"""How cost kernels and routing rules are compiled.

Owns: the decorators. Does not own: what is compiled with them, the simulator's own kernels.

A compiled function without flags of its own takes over those of whoever calls it first, and
numba's disk cache keeps the result for everybody. The simulator's kernels count no references; a
function that returns arrays and was compiled for them lets a caller that does count free memory
in use. So the flags are written down: no reference counts, since nothing here allocates, and
divisions by zero that are not looked for, since grids ascend.

Cost kernels are inlined by force: `StepTables` is twenty arrays, and a call would copy all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
}


def compiled(function: Function) -> Function:
    """Compiled code that allocates nothing and returns no array, for Python and other kernels."""
    made: Function = njit(**_OPTIONS)(function)
    return made


def pure(function: Function) -> Function:
    """The same, inlined wherever compiled code calls it."""
    made: Function = njit(forceinline=True, **_OPTIONS)(function)
    return made
