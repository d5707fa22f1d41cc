"""Compilation of the CPU kernels by numba; importing this module needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter lock, at first call, cached on disk where that is possible.

    Sums may be reordered, so that they use SIMD; NaN and infinities keep their meaning.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder that numba may write
        return numba.njit(**options)(function)
