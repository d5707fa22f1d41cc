"""Generates matrices and compiles kernels before a study of training steps, in parallel."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.sddmm.ahead import MAX_NNZ, run_on_each, warm_in_parallel
from experiments.sddmm.config import Config
from experiments.sddmm.problems import problems_of
from experiments.training.case import make_case
from experiments.training.methods import METHODS, OURS, YARDSTICKS


def warm_caches(configs: Sequence[Config]) -> None:
    """Fill the caches of matrices and of kernels for these cases."""
    warm_in_parallel(configs, (OURS, *YARDSTICKS), _compile, MAX_NNZ)


def warm(config: Config) -> None:
    """Fill both caches for the problems of a study, and measure nothing."""
    warm_caches([problem for _, problem in problems_of(config)])


def _compile(name: str, configs: Sequence[Config]) -> None:
    """Run the method of this name on every case."""
    run_on_each(METHODS.select([name])[name], make_case, configs)
