"""A smaller case that fails like a given one."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.run import Outcome, run

_SIZES = ("m", "n", "k", "max_nnz")


def smallest(case: Case, outcome: Outcome) -> tuple[Case, Outcome]:
    """Each field by its default, each size by half, as long as the same kind of failure stays."""
    changed = True
    while changed:
        changed = False
        for name, value in _simpler(case):
            other = replace(case, **{name: value})
            try:
                found = run(other)
            except Exception:  # a case that no generator would make
                continue
            if found.kind == outcome.kind:
                case, outcome, changed = other, found, True
                break
    return case, outcome


def _simpler(case: Case) -> list[tuple[str, Any]]:
    tries: list[tuple[str, Any]] = []
    for field in dataclasses.fields(case):
        value = getattr(case, field.name)
        if field.name in ("seed", "device") or value == field.default:
            continue
        if field.name not in _SIZES:
            tries.append((field.name, field.default))
        elif value > 1:
            tries.append((field.name, value // 2))
            if field.name != "max_nnz":
                tries.append((field.name, value - 1))
    return tries
