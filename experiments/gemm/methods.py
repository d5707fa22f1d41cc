"""The methods of GEMM: cuBLAS through torch.mm, gemm's own choice, and each variant by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from experiments.bench.errors import ExperimentError
from experiments.bench.methods import Run
from experiments.gemm.case import Case
from gemm_core.ladder.api import gemm, problem_of
from gemm_core.ladder.choose import choose
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import KERNEL_FOLDER, GemmProblem, KernelSpec
from gemm_core.runtime.compile import Resources, compile_kernel
from gemm_core.runtime.device import device


@dataclass(frozen=True)
class Cublas:
    """torch.mm; precision "tf32" lets it multiply float32 as TF32."""

    precision: str = "ieee"
    spec: KernelSpec | None = None

    def refuses(self, case: Case) -> str | None:
        return None

    def prepare(self, case: Case) -> Run:
        return partial(self.multiply, case, case.a, case.b)

    def multiply(self, case: Case, a: Tensor, b: Tensor) -> Tensor:
        in_halves = case.config.accumulate == "fp16"
        with _switches(allow_tf32=self.precision == "tf32", allow_fp16_accumulation=in_halves):
            return torch.mm(a, b, out=case.out)


@dataclass(frozen=True)
class Variant:
    """gemm with the kernel of a spec; without a spec, with the kernel that it chooses."""

    precision: str
    spec: KernelSpec | None = None

    def refuses(self, case: Case) -> str | None:
        if self.spec is not None:
            return self.spec.refuses(self._problem(case), device(0))
        try:
            self.kernel(case)
        except ValueError as error:
            return str(error)
        return None

    def kernel(self, case: Case) -> KernelSpec:
        """The kernel that computes the case. Raises ValueError if none does."""
        return self.spec or choose(self._problem(case), device(0))

    def prepare(self, case: Case) -> Run:
        return partial(self.multiply, case, case.a, case.b)

    def multiply(self, case: Case, a: Tensor, b: Tensor) -> Tensor:
        return gemm(
            a,
            b,
            out=case.out,
            kernel=None if self.spec is None else self.spec.name,
            accumulate=case.config.accumulate,
            precision=self.precision,
        )

    def resources(self, case: Case) -> Resources:
        """The registers, spills and shared memory of the compiled kernel."""
        return compile_kernel(*self.compile_arguments(case)).resources

    def compile_arguments(self, case: Case) -> tuple[Path, dict[str, str], str]:
        spec = self.kernel(case)
        return KERNEL_FOLDER / spec.source, spec.macros(self._problem(case)), device(0).arch

    def _problem(self, case: Case) -> GemmProblem:
        return problem_of(case.a, case.b, case.out, case.config.accumulate, self.precision)


GemmMethod = Cublas | Variant

CUBLAS, CUBLAS_TF32 = "cublas", "cublas_tf32"
# What a user gets who names no kernel.
CHOICE, CHOICE_TF32 = "gemm", "gemm_tf32"
ALL: dict[str, GemmMethod] = {
    CUBLAS: Cublas(),
    CUBLAS_TF32: Cublas("tf32"),
    CHOICE: Variant("ieee"),
    CHOICE_TF32: Variant("tf32"),
    **{name: Variant(spec.precision, spec) for name, spec in KERNELS.items()},
}


@contextlib.contextmanager
def _switches(**settings: bool) -> Iterator[None]:
    """Set these switches of torch.backends.cuda.matmul; a missing one cannot be set to true."""
    switches = torch.backends.cuda.matmul
    previous = {}
    for name, value in settings.items():
        if not hasattr(switches, name):
            if value:
                raise ExperimentError(f"torch {torch.__version__} has no {name} for torch.mm")
            continue
        previous[name] = getattr(switches, name)
        setattr(switches, name, value)
    try:
        yield
    finally:
        for name, value in previous.items():
            setattr(switches, name, value)
