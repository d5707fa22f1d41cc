"""Errors that a user can mend: one line, no traceback, exit code 1."""

from hydra.errors import CompactHydraException


class ExperimentError(CompactHydraException):
    """Something asked for is wrong or impossible; the message says what, and what is valid."""


class RowsFailed(ExperimentError):
    """A run ended with rows that are wrong or failed; the table has said which."""


class RecordsLost(ExperimentError):
    """A run ended with records that could not be kept; the table has been shown."""
