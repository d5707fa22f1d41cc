"""The operations that are measured: their operands, each rank's call, and one process's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import sddmm
from experiments.distributed.case import Case
from sddmm.distributed import DistributedPattern
from sddmm.distributed.volumes import Operation
from sddmm.sparse.pattern import SparsePattern

Results = tuple[Tensor, ...]

# What an operand has a row for: a row of S, a column, or a nonzero.
_SIDES = {"a": "rows", "b_t": "columns", "v": "columns", "grad_out": "rows", "weights": "nonzeros"}


@dataclass(frozen=True)
class Operands:
    """The operands of a call by name: of one rank, or of the whole matrix."""

    S: DistributedPattern | SparsePattern
    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


@dataclass(frozen=True)
class Measured:
    """An operation. needs: the names of its operands; messages: whose it sends in a call."""

    call: Callable[[Operands], Results]
    needs: tuple[str, ...]
    messages: tuple[Operation, ...]

    def of_one(self, case: Case) -> Operands:
        """The operands of one process that computes the whole."""
        m, n = case.pattern.shape
        sizes = {"rows": m, "columns": n, "nonzeros": case.pattern.nnz}
        parts = {name: _part(case, name, slice(0, sizes[_SIDES[name]])) for name in self.needs}
        return Operands(case.pattern, parts)

    def of_rank(self, case: Case, S: DistributedPattern) -> Operands:
        """The operands of this rank."""
        own = {"rows": S.rows, "columns": S.columns, "nonzeros": own_nonzeros(case, S)}
        return Operands(S, {name: _part(case, name, own[_SIDES[name]]) for name in self.needs})

    def least_bytes(self, case: Case) -> int:
        """The memory that one process needs at least: indices, operands and results."""
        (m, n), nnz = case.pattern.shape, case.pattern.nnz
        rows = {"rows": m, "columns": n}
        width = case.heads * case.k * case.item
        size = case.pattern.col_indices.element_size() * (nnz + m + 1)
        for name in self.needs:
            side = _SIDES[name]
            size += nnz * case.heads * case.item if side == "nonzeros" else rows[side] * width
        if self is OPERATIONS["spmm"]:
            return size + m * width
        if self is OPERATIONS["attention"]:
            return size + 2 * (m + n) * width  # the result, and a gradient of each
        size += nnz * case.heads * case.item
        return size + ((m + n) * width if self is OPERATIONS["training"] else 0)


def own_nonzeros(case: Case, S: DistributedPattern) -> slice:
    return slice(int(case.crow[S.rows.start]), int(case.crow[S.rows.stop]))


def _part(case: Case, name: str, own: slice) -> Tensor:
    make = case.weights if name == "weights" else lambda *at: case.rows_of(name, *at)
    return make(own.start, own.stop)


def _sampled(x: Operands) -> Results:
    return (sddmm.sddmm(x.S, x["a"], x["b_t"].mT),)


def _multiplied(x: Operands) -> Results:
    return (sddmm.spmm(x.S, x["b_t"], values=x["weights"]),)


def _trained(x: Operands) -> Results:
    a, b_t = (x[name].detach().requires_grad_() for name in ("a", "b_t"))
    values = sddmm.sddmm(x.S, a, b_t.mT)
    return (values.detach(), *torch.autograd.grad(values, (a, b_t), x["weights"]))


def _attended(x: Operands) -> Results:
    qkv = [x[name].detach().requires_grad_() for name in ("a", "b_t", "v")]
    out = sddmm.sparse_attention(x.S, *qkv)
    return (out.detach(), *torch.autograd.grad(out, qkv, x["grad_out"]))


OPERATIONS: Mapping[str, Measured] = {
    "sddmm": Measured(_sampled, ("a", "b_t"), ("sddmm",)),
    "spmm": Measured(_multiplied, ("b_t", "weights"), ("spmm",)),
    "training": Measured(_trained, ("a", "b_t", "weights"), ("sddmm", "spmm", "spmm_transposed")),
    "attention": Measured(
        _attended, ("a", "b_t", "v", "grad_out"), ("attention", "attention_backward")
    ),
}
