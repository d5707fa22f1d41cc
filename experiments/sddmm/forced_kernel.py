"""A GPU kernel of this package as a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from experiments.bench.methods import Run


class ForcedKernel(ABC):
    """A method that runs one kernel of ours, by its name, whatever the planner would choose."""

    # The method of ours whose code it runs.
    __file__: ClassVar[str]

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    @abstractmethod
    def new_plan(self, case: Any) -> Any:
        """The kernel prepared for the case; ValueError if it refuses the problem or the pattern."""

    @abstractmethod
    def prepare(self, case: Any) -> Run:
        """Do what is done once per pattern; return run()."""

    def refuses(self, case: Any) -> str | None:
        """The words in which the kernel refuses the problem, or the pattern."""
        try:
            self.new_plan(case)
        except ValueError as error:
            return str(error)
        return None
