"""Errors that a user can correct; the command line shows them in one line and exits with 1."""

import difflib
from collections.abc import Collection

from hydra.errors import CompactHydraException


class ExperimentError(CompactHydraException):
    """A request is wrong or cannot be served; the message says what, and what is valid."""


class RowsFailed(ExperimentError):
    """A run ended with rows that are wrong or failed; the table has said which."""


class RecordsLost(ExperimentError):
    """A run ended with records that could not be kept; the table has been shown."""


class NoRecords(ExperimentError):
    """The files that hold records are there, but not one record is in them."""


def unknown(
    kind: str, name: str, valid: Collection[str], *, prefix: str = "", more: str = ""
) -> str:
    """The message for a name that is none of the valid ones: the nearest of them, or all.

    prefix: stands before all these names. more: what is valid besides.
    """
    near = difflib.get_close_matches(name, valid, n=1)
    names = ", ".join(prefix + one for one in valid) + more
    hint = f"did you mean {prefix + near[0]!r}?" if near else f"choose from: {names}"
    return f"unknown {kind} {prefix + name!r}; {hint}"
