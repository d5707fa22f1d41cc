"""Methods are what an objective compares; the modules of a folder are found as methods."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from experiments.bench.errors import ExperimentError, unknown

# Computes the prepared product and returns its result.
Run = Callable[[], Any]


class Method(Protocol):
    """One way to compute a case; a module with these two functions is one."""

    def refuses(self, case: Any) -> str | None:
        """None, or the reason why the method does not serve the case."""

    def prepare(self, case: Any) -> Run:
        """Do the work that is done once per case, and is timed apart from the runs."""


@functools.cache
def _modules(folders: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the modules in these folders; a report asks for them with every record."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folders)))


class MethodFolder:
    """The methods of a package: every module is one, found by being there.

    first: the names that stand before the others, which follow in alphabetical order.
    """

    def __init__(self, package: str, first: Sequence[str] = ()) -> None:
        self.package, self.first = package, tuple(first)

    def names(self) -> list[str]:
        path = importlib.import_module(self.package).__path__
        rest = (name for name in _modules(tuple(path)) if name not in self.first)
        return [*self.first, *rest]

    def select(self, chosen: Sequence[str]) -> dict[str, Method]:
        """The methods of these names, or all; an unknown name is an error that lists them."""
        names = self.names()
        for name in chosen:
            if name not in names:
                raise ExperimentError(unknown("method", name, names))
        return {
            name: cast(Method, importlib.import_module(f"{self.package}.{name}"))
            for name in names
            if name in (chosen or names)
        }


def introduction(methods: Iterable[str], reimplemented: Mapping[str, str]) -> str:
    """The first sentence above a table of these methods: which are not their authors' code.

    reimplemented: the names of the re-implementations, and whose methods they are.
    """
    methods = set(methods)
    shown = [f"`{name}` ({whose})" for name, whose in reimplemented.items() if name in methods]
    if not shown:
        return ""
    be = "are re-implementations" if len(shown) > 1 else "is a re-implementation"
    return f"{' and '.join(shown)} {be} of ours from a description, not the authors' code."
