"""Generates matrices and compiles kernels before a study of attention, in parallel."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.attention.case import make_case
from experiments.attention.forced import forced_kernels
from experiments.attention.methods import FLEX, METHODS, OURS, PARTS, YARDSTICKS
from experiments.sddmm.ahead import MAX_NNZ, run_on_each, warm_in_parallel
from experiments.sddmm.config import Config
from experiments.sddmm.problems import problems_of


def warm_caches(configs: Sequence[Config]) -> None:
    """Fill the caches of matrices and of kernels for these cases, FlexAttention's too."""
    chosen = set(configs[0].methods) or set(METHODS.names())
    names = [name for name in (OURS, *YARDSTICKS, PARTS) if name in chosen]
    names += forced_kernels() if configs[0].kernels else ()
    slow_names = [name for name in (FLEX,) if name in chosen]
    warm_in_parallel(configs, names, _compile, MAX_NNZ, slow_names)


def warm(config: Config) -> None:
    """Fill the caches for the problems of a study, and measure nothing."""
    warm_caches([problem for _, problem in problems_of(config)])


def _compile(name: str, configs: Sequence[Config]) -> None:
    """Run the method of this name on every case."""
    if name == FLEX:
        from torch._inductor import config as inductor

        inductor.compile_threads = 1  # as every case has a process of its own
    method = forced_kernels().get(name) or METHODS.select([name])[name]
    run_on_each(method, make_case, configs)
