"""Which backend serves a problem: the first of `base.BACKENDS` that does not refuse."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from sddmm.backends import base
from sddmm.backends.base import Backend
from sddmm.problem import AttentionProblem, Problem, SddmmProblem, SpmmProblem, alike

_log = logging.getLogger(__name__)


def select_backend(
    problem: SddmmProblem, name: str | None = None
) -> tuple[Backend, Mapping[str, str]]:
    """The backend that serves `problem`, and the refusals of those that precede it.

    name: try this backend only; its refusal is a ValueError.
    """
    if name is not None and name not in {backend.name for backend in base.BACKENDS}:
        names = ", ".join(backend.name for backend in base.BACKENDS)
        raise ValueError(f"backend must be one of {names}, got {name!r}")
    backend, refusals = _selected(problem, "the samples", name)
    if backend is None:
        reasons = "; ".join(f"{refused}: {reason}" for refused, reason in refusals.items())
        raise ValueError(f"no backend serves this problem: {reasons}")
    return backend, refusals


def select_product_backend(problem: SpmmProblem) -> Backend:
    """The first backend that computes the product."""
    backend = _selected(problem, "the product")[0]
    if backend is None:
        raise ValueError(f"no backend serves this product: {problem}")
    return backend


def select_attention_backend(problem: AttentionProblem) -> Backend | None:
    """The first backend with a fused kernel for the problem; None leaves it to its parts."""
    return _selected(problem, "the attention")[0]


# Why a backend cannot compute what is named; None if it can.
_REFUSALS: dict[str, Callable[[Backend, Any], str | None]] = {
    "the samples": lambda backend, problem: base.refusal(backend, problem),
    "the product": lambda backend, problem: backend.available() or backend.refuses_product(problem),
    "the attention": lambda backend, problem: (
        backend.available() or backend.refuses_attention(problem)
    ),
}

Selection = tuple[Backend | None, Mapping[str, str]]
_SELECTIONS: dict[tuple[object, ...], Selection] = {}
_MAX_SELECTIONS = 1024


def _selected(problem: Problem, what: str, name: str | None = None) -> Selection:
    """The first backend that computes what is named, and the refusals of others. It is looked for
    once for problems that are alike: what a backend refuses for its sizes is larger than those."""
    key = alike(problem), what, name
    selection = _SELECTIONS.get(key)
    if selection is None:
        selection = _select(problem, what, name)
        if selection[0] is None and name is not None:  # an error, after which it may serve
            return selection
        if len(_SELECTIONS) >= _MAX_SELECTIONS:
            _SELECTIONS.clear()
        _SELECTIONS[key] = selection
    return selection


def _select(problem: Problem, what: str, name: str | None) -> Selection:
    refusals: dict[str, str] = {}
    for backend in base.BACKENDS:
        if name not in (None, backend.name):
            continue
        reason = _REFUSALS[what](backend, problem)
        if reason is None:
            _log.debug("backend %s serves %s", backend.name, problem)
            return backend, refusals
        _log.debug("backend %s refuses %s: %s", backend.name, what, reason)
        refusals[backend.name] = reason
    return None, refusals


CHOICES: list[Callable[[], None]] = [_SELECTIONS.clear]
"""What forgets the choices that were made: other modules add theirs."""


def forget_choices() -> None:
    """Choose a backend for every problem anew, as BACKENDS or what they can serve has changed."""
    for forget in CHOICES:
        forget()
