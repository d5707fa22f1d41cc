"""Compilation of the CPU kernels by numba; importing this module needs it."""

from __future__ import annotations

import functools
import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import event

_log = logging.getLogger(__name__)

# What an address is of: numba gives up the code of what nobody holds.
_C_FUNCTIONS: list[Any] = []

# The modules of this package begin with it.
_PACKAGE = __name__.partition(".")[0]


class _CompileLog(event.Listener):
    """Logs the compilations of this package's functions. numba calls it before and after each, and
    not for a function that it reads from its cache on disk."""

    def __init__(self) -> None:
        self._begin: dict[int, float] = {}

    def on_start(self, event: event.Event) -> None:
        self._begin[id(event.data["dispatcher"])] = time.perf_counter()

    def on_end(self, event: event.Event) -> None:
        dispatcher = event.data["dispatcher"]
        seconds = time.perf_counter() - self._begin.pop(id(dispatcher), time.perf_counter())
        function = dispatcher.py_func
        if function.__module__.startswith(_PACKAGE):
            _log.info("%s for the CPU: compiled in %.3f s", function.__name__, seconds)


event.register("numba:compile", _CompileLog())  # type: ignore[no-untyped-call]


@functools.cache
def sources_digest() -> str:
    """A digest of the sources of which kernels are compiled: those beside this one, and the rule of
    dropout."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in (*sorted(folder.glob("*.py")), folder.parents[1] / "dropout.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def jit(function: Callable[..., Any], inline: str = "never") -> Any:
    """Compile without the interpreter lock, at first call, cached on disk where that is possible.

    Sums may be reordered, so that they use SIMD; NaN and infinities keep their meaning.
    """
    # numba keeps a function on disk by its name and its own file's date. Kernels are compiled of
    # functions of other files too, so their names change with all of these.
    function.__qualname__ += f"_{sources_digest()}"
    options: dict[str, Any] = {
        "nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "inline": inline
    }  # fmt: skip
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder that numba may write
        return numba.njit(**options)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """`jit` for a function of arrays that others call often: its code becomes part of theirs.

    A call costs 20 ns, as numba counts the references to every array that it passes.
    """
    return jit(function, inline="always")


def c_function(function: Callable[[Any], None]) -> int:
    """The address of a C function of one address, compiled at once, cached on disk where that is
    possible. It runs without the interpreter lock."""
    function.__qualname__ += f"_{sources_digest()}"
    signature = numba.void(numba.intp)
    try:
        compiled: Any = numba.cfunc(signature, cache=True)(function)
    except RuntimeError:  # no folder that numba may write
        compiled = numba.cfunc(signature)(function)
    _C_FUNCTIONS.append(compiled)
    return int(compiled.address)
