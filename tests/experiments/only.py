"""SDDMM with the methods of a test in place of those of the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from experiments.bench.methods import Method
from experiments.sddmm.config import Config
from experiments.sddmm.objective import Sddmm


class Only(Sddmm):
    def __init__(self, methods: Mapping[str, Any]) -> None:
        self._methods = methods

    def names(self) -> Sequence[str]:
        return list(self._methods)

    def methods(self, config: Config) -> Mapping[str, Method]:
        return self._methods


def only(**methods: Any) -> Only:
    """The objective with these methods: name=run(case), parts of a method, or a whole one."""
    return Only({name: _method(method) for name, method in methods.items()})


def _method(method: Any) -> Any:
    if isinstance(method, dict):
        return SimpleNamespace(refuses=lambda case: None, **method)
    if hasattr(method, "prepare"):
        return method
    prepare = lambda case: lambda: method(case)  # noqa: E731
    return SimpleNamespace(refuses=lambda case: None, prepare=prepare)


def right(case: Any) -> torch.Tensor:
    """The values of the definition."""
    values: torch.Tensor = (case.a @ case.b)[case.pattern.row_ids, case.pattern.col_indices]
    return values
