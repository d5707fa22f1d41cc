"""Generates matrices and compiles kernels before a study of training steps, in parallel."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from experiments.sddmm.ahead import warm_in_parallel
from experiments.sddmm.config import Config
from experiments.sddmm.problems import problems_of
from experiments.training.case import make_case
from experiments.training.methods import METHODS, OURS, YARDSTICKS

# The smaller matrices need the same kernels as the larger ones do.
_MAX_NNZ = 12_000_000


def warm_caches(configs: Sequence[Config]) -> None:
    """Fill the caches of matrices and of kernels for these cases."""
    warm_in_parallel(configs, (OURS, *YARDSTICKS), _compile, _MAX_NNZ)


def warm(config: Config) -> None:
    """Fill both caches for the problems of a study, and measure nothing."""
    warm_caches([problem for _, problem in problems_of(config)])


def _compile(name: str, configs: Sequence[Config]) -> None:
    """Run the method of this name on every case."""
    method = METHODS.select([name])[name]
    for config in configs:
        with contextlib.suppress(Exception):  # which the run of the case shows
            case = make_case("", config)
            if method.refuses(case) is None:
                method.prepare(case)()
                if public_call := getattr(method, "public_call", None):
                    public_call(case)()
