"""Generates matrices and compiles kernels before a study of SpMM, in parallel."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.sddmm.ahead import MAX_NNZ, run_on_each, warm_in_parallel
from experiments.sddmm.config import Config
from experiments.sddmm.problems import problems_of
from experiments.spmm.case import make_case
from experiments.spmm.forced import forced_kernels
from experiments.spmm.methods import METHODS, OURS, YARDSTICKS


def warm_caches(configs: Sequence[Config]) -> None:
    """Fill the caches of matrices and of kernels for these cases."""
    warm_in_parallel(configs, (OURS, *YARDSTICKS, *forced_kernels()), _compile, MAX_NNZ)


def warm(config: Config) -> None:
    """Fill both caches for the problems of a study, and measure nothing."""
    warm_caches([problem for _, problem in problems_of(config)])


def _compile(name: str, configs: Sequence[Config]) -> None:
    """Run the method of this name on every case."""
    method = forced_kernels().get(name) or METHODS.select([name])[name]
    run_on_each(method, make_case, configs)
