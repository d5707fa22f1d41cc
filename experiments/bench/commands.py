"""Commands of the command line: the configuration that each takes and what it does with it.

An objective lists its own in a module `commands`, which imports nothing heavy: what a command does
is imported when it is called.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore

from experiments.bench.errors import ExperimentError
from experiments.bench.keys import list_keys
from experiments.bench.log import Log


@dataclass(frozen=True)
class Job:
    """One job of Hydra: the launcher that runs it, and the option that it has of each group.

    log: of all jobs of this command. count: how many jobs there are; None where it is unknown.
    """

    launcher: str
    choices: Mapping[str, str]
    log: Log = field(default_factory=Log)
    count: int | None = 1


@dataclass(frozen=True)
class Command(ABC):
    """A word of the command line.

    config: the YAML file of conf/ that holds its configuration. schema: the dataclass of it.
    target: "module:name" of what it works with. help: how it is called, and what it does then.
    targets: what it works with instead, by the value of the key `objective`. folders: the packages
    whose modules are the values of a key. about: what it does, where the docstring of the schema
    says something else.
    """

    name: str
    config: str
    schema: type
    target: str
    help: tuple[tuple[str, str], ...]
    targets: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    about: str = ""

    @property
    def lists(self) -> tuple[str, ...]:
        """The keys whose value is a list of names."""
        return list_keys(self.schema)

    def register(self) -> None:
        """Register the type of the configuration with Hydra; call before composing."""
        ConfigStore.instance().store(name=f"{self.config}_schema", node=self.schema)

    def load(self, settings: Any) -> Any:
        """The object that the target names for this configuration."""
        target = self.targets.get(getattr(settings, "objective", ""), self.target)
        module, _, name = target.partition(":")
        return getattr(importlib.import_module(module), name)

    @abstractmethod
    def __call__(self, settings: Any, job: Job) -> None:
        """Run the command with its configuration."""


class Measure(Command):
    """Measures the objective that the target names."""

    def __call__(self, settings: Any, job: Job) -> None:
        objective = self.load(settings)
        refuse_parallel_jobs(job.launcher, objective.device(settings))
        objective.run(objective.cases(settings, job.choices), job.log, job.count)


class Report(Command):
    """Reports the records of the objective that the target names."""

    def __call__(self, settings: Any, job: Job) -> None:
        from experiments.bench.report import report

        report(self.load(settings), settings)


class Call(Command):
    """Calls the function that the target names."""

    def __call__(self, settings: Any, job: Job) -> None:
        self.load(settings)(settings)


def refuse_parallel_jobs(launcher: str, device: str) -> None:
    """Refuse jobs that share a GPU, which falsifies each other's times."""
    if device.startswith("cuda") and not launcher.endswith(".BasicLauncher"):
        raise ExperimentError(
            f"launcher {launcher} runs jobs at once, which falsifies times on a GPU; "
            f"choose hydra/launcher=basic"
        )
