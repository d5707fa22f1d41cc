"""Errors that a user can correct; the command line shows them in one line and exits with 1."""

from hydra.errors import CompactHydraException


class ExperimentError(CompactHydraException):
    """A request is wrong or cannot be served; the message says what, and what is valid."""


class RowsFailed(ExperimentError):
    """A run ended with rows that are wrong or failed; the table has said which."""


class RecordsLost(ExperimentError):
    """A run ended with records that could not be kept; the table has been shown."""


class NoRecords(ExperimentError):
    """The files that hold records are there, but not one record is in them."""
