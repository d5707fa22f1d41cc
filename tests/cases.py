"""Which cases of a test `make test` runs, and which the machine of a GPU, which has the cores."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest

__all__ = ["cases"]


def cases(
    every: Iterable[Any], here: Container[Any], name: Callable[[Any], str] | None = None
) -> list[Any]:
    """Every case as a parameter; those that are not in `here` are of the GPU suite alone.

    A tuple is the values of several arguments. name: what a case is called.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=None if name is None else name(case),
            marks=() if case in here else pytest.mark.gpu,
        )
        for case in every
    ]
