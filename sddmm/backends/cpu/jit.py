"""Compilation of the CPU kernels by numba; importing this module needs it."""

from __future__ import annotations

import functools
import hashlib
import logging
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config, event

_log = logging.getLogger(__name__)

# The modules of this package begin with it.
_PACKAGE = __name__.partition(".")[0]
# What ends the names of functions whose sums, written side by side, become one of SIMD.
_SIDE_BY_SIDE = "_side_by_side"


class _Compilation(event.Listener):
    """Logs the compilations of this package's functions, and sets how numba compiles them. numba
    calls it before and after each, holding its lock, and not for a function that it reads from its
    cache on disk."""

    def __init__(self) -> None:
        self._begin: dict[int, float] = {}
        self._settings: list[Any] = []

    def on_start(self, event: event.Event) -> None:
        dispatcher = event.data["dispatcher"]
        self._begin[id(dispatcher)] = time.perf_counter()
        self._settings.append(getattr(config, "SLP_VECTORIZE", 0))
        if dispatcher.py_func.__name__.endswith(_SIDE_BY_SIDE):
            config.SLP_VECTORIZE = 1  # type: ignore[attr-defined]

    def on_end(self, event: event.Event) -> None:
        config.SLP_VECTORIZE = self._settings.pop()  # type: ignore[attr-defined]
        dispatcher = event.data["dispatcher"]
        seconds = time.perf_counter() - self._begin.pop(id(dispatcher), time.perf_counter())
        function = dispatcher.py_func
        if function.__module__.startswith(_PACKAGE):
            _log.info("%s for the CPU: compiled in %.3f s", function.__name__, seconds)


event.register("numba:compile", _Compilation())  # type: ignore[no-untyped-call]


@functools.cache
def sources_digest() -> str:
    """A digest of the sources of which kernels are compiled: those beside this one, and the rule of
    dropout."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in (*sorted(folder.glob("*.py")), folder.parents[1] / "dropout.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def jit(function: Callable[..., Any], inline: str = "never", keeps_order: bool = False) -> Any:
    """Compile without the interpreter lock, at first call, cached on disk where that is possible.

    Sums may be reordered, so that they use SIMD, unless `keeps_order`; NaN and infinities keep
    their meaning.
    """
    # numba keeps a function on disk by its name and its own file's date. Kernels are compiled of
    # functions of other files too, so their names change with all of these.
    function.__qualname__ += f"_{sources_digest()}"
    fastmath = {"contract", "nsz"} if keeps_order else {"reassoc", "contract", "nsz"}
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "inline": inline}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder that numba may write
        return numba.njit(**options)(function)


def side_by_side(compiled: Any) -> Any:
    """The same function, compiled so that sums which it writes side by side become one of SIMD.

    Sums that may be reordered become one of SIMD each, of addends that are gathered first. numba
    leaves the other way to a setting of the process, which holds only while this is compiled.
    """
    original = compiled.py_func
    name = original.__name__ + _SIDE_BY_SIDE
    function = types.FunctionType(original.__code__, original.__globals__, name)
    function.__qualname__ = name
    return jit(function, keeps_order=True)


def inlined(function: Callable[..., Any]) -> Any:
    """`jit` for a function of arrays that others call often: its code becomes part of theirs.

    A call costs 20 ns, as numba counts the references to every array that it passes.
    """
    return jit(function, inline="always")
