"""Generates matrices and compiles kernels before a study of SpMM, in parallel."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from experiments.sddmm.ahead import warm_in_parallel
from experiments.sddmm.config import Config
from experiments.sddmm.problems import problems_of
from experiments.spmm.case import Case, make_case
from experiments.spmm.forced import forced_kernels
from experiments.spmm.methods import METHODS, OURS, YARDSTICKS

# The smaller matrices need the same kernels as the larger ones do.
_MAX_NNZ = 12_000_000


def warm_caches(configs: Sequence[Config]) -> None:
    """Fill the caches of matrices and of kernels for these cases."""
    warm_in_parallel(configs, (OURS, *YARDSTICKS, *forced_kernels()), _compile, _MAX_NNZ)


def warm(config: Config) -> None:
    """Fill both caches for the problems of a study, and measure nothing."""
    warm_caches([problem for _, problem in problems_of(config)])


def _compile(name: str, configs: Sequence[Config]) -> None:
    """Run the method of this name on every case."""
    for config in configs:
        with contextlib.suppress(Exception):  # which the run of the case shows
            _run(name, make_case("", config))


def _run(name: str, case: Case) -> None:
    method = forced_kernels().get(name) or METHODS.select([name])[name]
    if method.refuses(case) is None:
        method.prepare(case)()
        if public_call := getattr(method, "public_call", None):
            public_call(case)()
