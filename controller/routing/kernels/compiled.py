# SPDX-License-Identifier: Apache-2.0
"""How routing rules are compiled.

Owns: the decorator. Does not own: what is compiled with it.

The flags are written down for the reason given in controller/costs/compiled.py: a function without
flags of its own takes over those of its first caller, the disk cache keeps the result for every
caller, and callers that count references must not share code with those that do not.
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
