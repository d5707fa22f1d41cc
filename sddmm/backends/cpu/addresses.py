"""Arrays over memory that a caller names by address; importing this module needs numba.

To make a numpy array of a tensor, and to read it in a compiled function, takes a microsecond each:
half the time of a call with few nonzeros. An address is an integer.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from sddmm.backends.cpu.jit import inlined


@intrinsic
def _pointer(typing_context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], pointer)

    return types.voidptr(address), generate


@inlined
def array_at(address: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """The C-contiguous array of this shape and numpy type at an address, which must hold it."""
    return carray(_pointer(address), shape, dtype)  # type: ignore[call-arg]


@intrinsic
def fetch_and_add(typing_context, address, number):  # type: ignore[no-untyped-def]
    """The 64-bit integer at an address, to which `number` is added in one step for all threads.

    numba has no atomic operations on a CPU.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "monotonic")

    return types.int64(types.int64, types.int64), generate
