"""Products of this package prepared for a case: by the planner's choice, or by a kernel's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.sddmm.unseen import new_pattern
from experiments.spmm.case import Case
from sddmm.backends.base import PreparedProduct
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.selection import select_product_backend
from sddmm.problem import SpmmProblem
from sddmm.products import product_problem


@dataclass(frozen=True)
class Product:
    """A product that is prepared for the pattern of a case."""

    case: Case
    problem: SpmmProblem
    executor: PreparedProduct

    @property
    def notes(self) -> Sequence[str]:
        """The lines that explain the choice."""
        return self.executor.notes

    def run(self) -> Tensor:
        case = self.case
        out = torch.empty(case.out_shape, dtype=case.dense.dtype, device=case.dense.device)
        if case.nnz == 0:  # as sddmm.products has it, which runs no executor then
            return out.zero_()
        self.executor(case.weights, None, case.dense, 1.0, out)
        return out


def new_product(case: Case) -> Product:
    """The product as the planner chooses it for many calls."""
    problem = problem_of(case)
    backend = select_product_backend(problem)
    executor = backend.prepare_product(new_pattern(case), problem, case.transpose)
    return Product(case, problem, executor)


def problem_of(case: Case) -> SpmmProblem:
    return product_problem(case.pattern, case.weights, case.dense, None, case.transpose, None)


def new_product_by(kernel: str, case: Case) -> Product:
    """The product by a GPU kernel of this name; ValueError if it refuses."""
    backend, problem = CudaBackend(), problem_of(case)
    device = loader.runtime.device(loader.runtime.current_device())
    executor = backend.products.prepare(
        new_pattern(case), problem, device, kernel, transpose=case.transpose
    )
    return Product(case, problem, executor)
