"""The dense kernel core of `sddmm`: GEMM kernels compiled at run time, and fragment layouts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gemm_core import fragments
from gemm_core.runtime.variables import refuse_mistakes

if TYPE_CHECKING:
    from gemm_core.ladder.api import gemm

refuse_mistakes()


def kernels() -> list[str]:
    """The names of all GEMM kernels, simplest first."""
    from gemm_core.ladder.registry import KERNELS

    return list(KERNELS)


__all__ = ["fragments", "gemm", "kernels"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # type checkers know `gemm`, and are to find what does not exist

    def __getattr__(name: str) -> Any:
        """The ladder is imported at its first use: `sddmm` needs no dense products."""
        if name not in ("gemm", "ladder"):
            raise AttributeError(f"module 'gemm_core' has no attribute {name!r}")
        found = importlib.import_module("gemm_core.ladder")
        if name == "gemm":
            found = globals()[name] = importlib.import_module("gemm_core.ladder.api").gemm
        return found
