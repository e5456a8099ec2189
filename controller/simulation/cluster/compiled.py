# SPDX-License-Identifier: Apache-2.0
"""How the kernels of the simulator are compiled, and how they see the state.

Owns: the decorator, and the numba type of a bundle of arrays. Does not own: which arrays there are
(state.py).

A bundle goes from kernel to kernel as one pointer, to a table of the arrays' addresses and shapes.
As a tuple of arrays each call would copy some 170 words and count references: 40 times slower to
run, and minutes to compile. Kernels allocate nothing, so they need no reference counts; the Python
object that owns the arrays outlives the call. Indices are never checked.

numba's disk cache notices a changed file only for the functions in it, not for those they call.
The name of a bundle's type therefore carries a digest of its layout and of all kernel sources: any
change compiles everything that takes the bundle anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit as _njit
from numba import types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
njit: Any = _njit  # its options for kernels are not in its stubs
_WORDS = 3  # of the table, per array: address, and two lengths


def kernel(function: Kernel) -> Kernel:
    """For kernels to call: compiled when the first caller is, once for all widths of integers."""
    # Its code is in the caller's: a cache entry of its own would only be read and written.
    compiled = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function)
    return cast(Kernel, _widened(compiled))


def entry(function: Kernel) -> Kernel:
    """For Python to call: compiled at the first call, or loaded if an earlier process did that."""
    return cast(Kernel, njit(cache=True, **_OPTIONS)(function))


def _widened(compiled: Any) -> Any:
    """Callers convert integers to 64 bits, instead of asking for a version for each width."""
    resolve = compiled.get_call_template

    def get_call_template(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        wide = tuple(types.int64 if isinstance(arg, types.Integer) else arg for arg in args)
        return resolve(wide, kws)

    compiled.get_call_template = get_call_template
    return compiled


class Bundle:
    """Named arrays that kernels see as attributes. Subclasses name them in `fields`.

    `fields` maps a name to (dtype, dimensions, 1 or 2). Arrays must be C-contiguous.
    """

    fields: Mapping[str, tuple[Any, int]]

    def __init__(self, **arrays: Any) -> None:
        self._table = np.zeros(_WORDS * len(self.fields), np.int64)
        self.address = self._table.ctypes.data
        for name in self.fields:
            self.put(name, arrays[name])

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def put(self, name: str, array: Any) -> None:
        """Set an array; kernels see it from the next call on."""
        dtype, dimensions = self.fields[name]
        if array.dtype != dtype or array.ndim != dimensions or not array.flags.c_contiguous:
            raise TypeError(f"{name}: {array.dtype} with {array.ndim} dimensions")
        setattr(self, name, array)
        place = _WORDS * list(self.fields).index(name)
        self._table[place] = array.ctypes.data
        self._table[place + 1 : place + 1 + dimensions] = array.shape


class BundleType(types.Type):
    """What kernels know a bundle as."""

    def __init__(self, name: str, fields: tuple[tuple[str, Any, int], ...]) -> None:
        self.fields = fields
        super().__init__(name=name)

    @property
    def key(self) -> str:
        return str(self.name)

    def place(self, name: str) -> tuple[int, Any, int]:
        """(position in the table, element type, dimensions) of an array."""
        for i, (field, dtype, dimensions) in enumerate(self.fields):
            if field == name:
                return i, dtype, dimensions
        raise KeyError(name)


def bundle_type(bundle: type[Bundle], sources: tuple[Path, ...]) -> BundleType:
    """The numba type of a bundle class; `sources` are the files of the kernels that take it."""
    fields = tuple((name, from_dtype(np.dtype(d)), n) for name, (d, n) in bundle.fields.items())
    digest = hashlib.sha256(repr(fields).encode())
    for path in sorted(sources):
        digest.update(path.read_bytes())
    known = BundleType(f"{bundle.__name__}-{digest.hexdigest()[:16]}", fields)
    typeof_impl.register(bundle)(lambda value, context: known)
    return known


@register_model(BundleType)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, ir.IntType(64).as_pointer())


@unbox(BundleType)
def _unbox(of: Any, value: Any, c: Any) -> Any:
    number = c.pyapi.object_getattr_string(value, "address")
    pointer = c.pyapi.long_as_voidptr(number)
    c.pyapi.decref(number)
    return NativeValue(c.builder.bitcast(pointer, ir.IntType(64).as_pointer()))


@infer_getattr
class _Attributes(AttributeTemplate):
    key = BundleType

    def generic_resolve(self, of: Any, name: Any) -> Any:  # type: ignore[override]
        for field, dtype, dimensions in of.fields:
            if field == name:
                return types.Array(dtype, dimensions, "C")
        return None


@lower_getattr_generic(BundleType)
def _array(context: Any, builder: Any, of: BundleType, value: Any, name: str) -> Any:
    """An array over memory that somebody else owns."""
    i, dtype, dimensions = of.place(name)
    kind = types.Array(dtype, dimensions, "C")
    word = ir.IntType(64)

    def load(k: int) -> Any:
        place = builder.gep(value, [ir.Constant(word, _WORDS * i + k)])
        return builder.load(place)

    array = make_array(kind)(context, builder)
    size = context.get_abi_sizeof(context.get_data_type(dtype))
    item = context.get_constant(types.intp, size)
    shape = [load(1 + k) for k in range(dimensions)]
    strides = [item] if dimensions == 1 else [builder.mul(shape[1], item), item]
    data = builder.inttoptr(load(0), context.get_data_type(dtype).as_pointer())
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=item, meminfo=None)
    return array._getvalue()
