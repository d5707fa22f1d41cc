"""The methods that are compared: one file each, found by being here.

A module `NAME.py` of this folder defines two functions:

    refuses(case) -> str | None      why the method does not serve the case, in words
    prepare(case) -> run             what it does once per pattern, timed apart;
                                     run() -> (nnz,) tensor of values in the pattern's order

and, where its user calls something else for a single product, a third one:

    public_call(case) -> run         run() is that call; making its arguments is not part of it

Nothing else needs to be told of a new method.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from torch import Tensor

from experiments.bench.errors import ExperimentError
from experiments.sddmm.case import Case

Run = Callable[[], Tensor]

OURS, BASELINE = "ours", "isratnisa"

# Methods of other people that were written anew here, and whose they are.
REIMPLEMENTED = {
    "isratnisa": "cuSDDMM, Nisa et al., HiPC 2018",
    "zcx": "the WMMA kernel of the published SDDMM log",
}


class Method(Protocol):
    def refuses(self, case: Case) -> str | None: ...

    def prepare(self, case: Case) -> Run: ...


def introduction(methods: Iterable[str]) -> str:
    """The first sentence above a table of these methods: which are not their authors' code."""
    methods = set(methods)
    shown = [f"`{name}` ({whose})" for name, whose in REIMPLEMENTED.items() if name in methods]
    if not shown:
        return ""
    be = "are re-implementations" if len(shown) > 1 else "is a re-implementation"
    return f"{' and '.join(shown)} {be} of ours from a description, not the authors' code."


def names() -> list[str]:
    """All methods: ours, the published baseline, then by name."""
    found = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return sorted(found, key=lambda name: (name != OURS, name != BASELINE))


def select(chosen: list[str]) -> dict[str, Method]:
    """The methods of these names, or all; an unknown name is an error that lists them."""
    known = names()
    for name in chosen:
        if name not in known:
            raise ExperimentError(f"unknown method {name!r}; choose from: {', '.join(known)}")
    return {
        name: cast(Method, importlib.import_module(f"{__name__}.{name}"))
        for name in known
        if name in (chosen or known)
    }
