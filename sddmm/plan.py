"""Plans: the work on a pattern, done once for many products."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from sddmm.backends.base import Executor
from sddmm.backends.cuda.comparison import same_indices
from sddmm.cache import CACHE
from sddmm.cupy_arrays import make_cupy_wait, to_cupy, to_tensor
from sddmm.dtypes import dtype_name
from sddmm.memory import overlap
from sddmm.operands import (
    as_operands,
    check_fit,
    check_operands,
    needs_grad,
    problem_of,
    transpose_if_csc,
)
from sddmm.ops.autocast import autocast_dtype
from sddmm.ops.routing import is_plain
from sddmm.ops.traced import needs_operator
from sddmm.prepared import PreparedPlan
from sddmm.problem import SddmmProblem
from sddmm.sparse.pattern import SparsePattern
from sddmm.sparse.torch_tensors import parts_of_tensor


@dataclass(frozen=True, eq=False, init=False)
class Plan:
    """A pattern that is prepared for products of one problem; `sddmm.plan` makes it.

    `prepared` says what computes it, why others do not, and what preparing it took. `alpha` and
    `values` (S's, or None) scale what `run` returns. `transposed`: S is CSC, and `pattern` the CSR
    form of its transpose. Copies and pickles are prepared anew, where they are.
    """

    pattern: SparsePattern
    prepared: PreparedPlan
    alpha: float
    values: Tensor | None
    transposed: bool
    _source: SparsePattern | None  # over the indices of S itself, where `pattern` is of a copy
    _source_versions: tuple[int, ...] | None  # when they were last known to be the same
    _owner: weakref.ref[Tensor] | None  # S itself, if it is a torch sparse tensor
    _owner_version: int  # when it was last known to hold the memory that was planned

    def __init__(
        self,
        pattern: SparsePattern,
        prepared: PreparedPlan,
        alpha: float = 1.0,
        values: Tensor | None = None,
        transposed: bool = False,
        source: SparsePattern | None = None,
        owner: Tensor | None = None,
    ) -> None:
        self.__dict__.update(  # one update: a frozen dataclass assigns each field slowly
            pattern=pattern,
            prepared=prepared,
            alpha=alpha,
            values=values,
            transposed=transposed,
            _source=source,
            _source_versions=None if source is None else source.versions,
            _owner=None if owner is None else weakref.ref(owner),
            _owner_version=_version(owner),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        self._refresh()
        current = self.prepared
        requests = current.requested_backend, current.kernel, current.calls
        return _rebuild, (
            self.pattern, current.problem, requests, self.alpha, self.values, self.transposed
        )  # fmt: skip

    @property
    def problem(self) -> SddmmProblem:
        return self.prepared.problem

    @property
    def backend(self) -> str:
        return self.prepared.backend

    @property
    def prepare_ms(self) -> float:
        return self.prepared.prepare_ms

    @property
    def execute(self) -> Executor:
        return self.prepared.execute

    def run(self, a: Any, b: Any, out: Tensor | None = None) -> Any:
        """alpha * (a @ b) at the pattern, times S's values if the plan holds them.

        a: ([heads,] m, k), b: ([heads,] k, n), of the plan's dtype and device; torch tensors, or
        numpy arrays for a plan on the CPU. Returns ([heads,] nnz) values in S's order, as numpy if
        both operands are; `out`, a contiguous tensor of that shape and out_dtype, is filled and
        returned instead. Differentiable in a, b and the values unless `out` is given.
        If S was changed in place since, its work is done again first. ValueError if S has other
        memory (a COO tensor after copy_ or add_) or another number of nonzeros than when planned.
        (Torch counts a change of a sparse tensor's values as one of its indices, which are then
        compared; it does not count changes of the tensors that a sparse tensor was made of. Plan a
        SparsePattern of those.)
        """
        a, b, to_output = as_operands(a, b)
        if not is_plain(a, b) and needs_operator(self, to_output):
            return to_output(self._run_operator(a, b, out))
        self._refresh()
        a, b = transpose_if_csc(a, b, self.pattern, self.transposed)
        self._check_fit(a, b)
        if out is None:
            return to_output(self.sample(a, b))
        if needs_grad(a, b, self.values):
            raise ValueError("out= cannot be differentiated; call run without out")
        self._check_out(out)
        self._check_apart(out, a, b)
        if out.numel():
            self.execute(a, b, self.values, self.alpha, out)
        if not out.is_inference():  # a backward that saved its old values must notice
            torch.autograd.graph.increment_version(out)
        if to_output is to_cupy or to_output is to_tensor:
            make_cupy_wait(out.device)
        return out

    def _run_operator(self, a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
        """`run` by the torch operator, which torch observes. Reads only metadata of tensors."""
        problem = self.problem
        pattern = self.pattern if self._source is None else self._source
        a, b = transpose_if_csc(a, b, pattern, self.transposed)
        check_operands(a, b, alike=False)
        self._check_fit_after_autocast(a, b)
        if out is not None:
            self._check_out(out)
        if not is_dynamo_compiling():  # which takes no sparse tensor
            self._check_owner()
        values: Tensor = torch.ops.sddmm.sddmm(
            pattern.major_indices,
            pattern.col_indices,
            a,
            b,
            self.values,
            compressed=pattern.is_csr,
            blocksize=pattern.blocksize,
            alpha=self.alpha,
            # Half operands, under autocast, have half results as in `sddmm`.
            out_dtype=None if problem.out_dtype == problem.dtype else problem.out_dtype,
            precision=problem.precision,
            backend=self.prepared.requested_backend,
            kernel_name=self.prepared.kernel,
            calls=self.prepared.calls,
        )
        if out is None:
            return values
        if needs_grad(a, b, self.values):
            raise ValueError("out= cannot be differentiated; call run without out")
        return out.copy_(values)

    def _refresh(self) -> None:
        """Prepare again if the indices have changed since the plan was prepared."""
        if self._owner is not None:
            self._check_owner()
        source, pattern, current = self._source, self.pattern, self.prepared
        if source is not None and source.versions != self._source_versions:
            versions = source.versions
            if not same_indices(pattern, source):
                pattern = source.clone()
            self.__dict__.update(pattern=pattern, _source_versions=versions)
        if not pattern.is_at(current.versions):
            _check_size(pattern, current.problem)
            requests = current.requested_backend, current.kernel, current.calls
            renewed = CACHE.get_or_prepare(pattern, current.problem, *requests)
            self.__dict__.update(prepared=renewed)

    def _check_owner(self) -> None:
        """Raise ValueError if S, a torch sparse tensor, has other memory than what was planned."""
        S = None if self._owner is None else self._owner()
        if S is None or _version(S) == self._owner_version:
            return
        version, parts, source = _version(S), parts_of_tensor(S), self._source
        assert source is not None
        indices = (source.major_indices, parts.rows), (source.col_indices, parts.cols)
        if any(not _same_memory(*pair) for pair in (*indices, (self.values, parts.values))):
            raise ValueError(
                "S was given other indices and values since it was planned, as by copy_, add_, "
                "zero_ or resize_; make a new plan of it"
            )
        self.__dict__.update(_owner_version=version)

    def sample(self, a: Tensor, b: Tensor) -> Tensor:
        """`run` for operands that are checked and have the orientation of the pattern."""
        if not needs_grad(a, b, self.values):
            return self.prepared.compute(a, b, self.values, self.alpha)
        prepared_plan = self.prepared
        return sample_by_operator(
            self.pattern, self.problem, a, b, self.values, self.alpha,
            prepared_plan.requested_backend, prepared_plan.kernel, prepared_plan.calls,
        )  # fmt: skip

    def explain(self) -> str:
        """The backend and kernel that serve, why the others do not, and the time to prepare."""
        p = self.problem
        heads, form = "" if p.heads is None else f"{p.heads} heads of ", self.pattern.form
        lines = [
            f"SDDMM of {heads}({p.m}x{p.k}) @ ({p.k}x{p.n}) at {p.nnz} nonzeros "
            f"({form[:3].upper()}{form[3:]}, {dtype_name(p.index_dtype)} indices)",
            f"  operands {dtype_name(p.dtype)}, values {dtype_name(p.out_dtype)}, "
            f"precision {p.precision}, on {p.device}",
            f"  backend  {self.backend}: {p.flops / 1e9:.3g} useful GFLOP a run, "
            f"prepared in {self.prepare_ms:.3g} ms for "
            f"{'a single run' if self.prepared.calls == 1 else f'{self.prepared.calls} runs'}",
        ]
        lines += [f"  {note}" for note in self.execute.notes]
        lines += [f"  not      {name}: {reason}" for name, reason in self.prepared.refusals.items()]
        return "\n".join(lines)

    def _check_fit(self, a: Tensor, b: Tensor) -> None:
        p = self.problem
        if (
            (a.shape == p.a_shape() and b.shape == p.b_shape())
            and (a.dtype == b.dtype == p.dtype and a.device == b.device == p.device)
            and (a.layout == b.layout == torch.strided)
        ):
            return
        other = problem_of(self.pattern, a, b, p.out_dtype, p.precision, p.scaled)
        for name in ("dtype", "k", "heads"):
            ours, theirs = getattr(p, name), getattr(other, name)
            if ours != theirs:
                raise ValueError(
                    f"the plan was made for {name}={ours}, a and b have {name}={theirs}"
                )

    def _check_fit_after_autocast(self, a: Tensor, b: Tensor) -> None:
        problem = self.problem
        check_fit(a, b, self.pattern.shape, self.pattern.device)
        planned = autocast_dtype(problem.dtype, problem.device)
        dtype = autocast_dtype(a.dtype, problem.device)
        if dtype != planned:
            raise ValueError(f"the plan was made for dtype={planned}, a and b have dtype={dtype}")
        heads = a.shape[0] if a.dim() == 3 else None
        if a.shape[-1] != problem.k or heads != problem.heads:
            raise ValueError(
                f"the plan was made for k={problem.k}, heads={problem.heads}; "
                f"a and b have k={a.shape[-1]}, heads={heads}"
            )

    def _check_out(self, out: Any) -> None:
        """Raise TypeError or ValueError if `out` cannot hold the result."""
        if not isinstance(out, Tensor) or out.layout != torch.strided:
            got = f"layout {out.layout}" if isinstance(out, Tensor) else repr(type(out))
            raise TypeError(f"{self._describe_out()}, got {got}")
        problem = self.problem
        fits = (
            tuple(out.shape) == problem.values_shape()
            and out.dtype == problem.out_dtype
            and out.device == problem.device
            and out.is_contiguous()
            and (is_dynamo_compiling() or not (out.is_neg() or out.is_conj()))  # it asks neither
        )
        if not fits:
            raise ValueError(
                f"{self._describe_out()}, got {dtype_name(out.dtype)} {tuple(out.shape)} "
                f"with strides {out.stride()} on {out.device}"
            )
        if out.requires_grad:
            raise ValueError(
                f"{self._describe_out()} that does not require grad; got one that does"
            )

    def _describe_out(self) -> str:
        problem = self.problem
        return (
            f"out must be a contiguous {dtype_name(problem.out_dtype)} tensor of shape "
            f"{problem.values_shape()} on {problem.device}"
        )

    def _check_apart(self, out: Tensor, a: Tensor, b: Tensor) -> None:
        pattern = self.pattern
        inputs = {"a": a, "b": b, "the values of S": self.values}
        inputs |= {"the indices of S": pattern.col_indices, "the rows of S": pattern.major_indices}
        for name, tensor in inputs.items():
            if tensor is not None and overlap(out, tensor):
                raise ValueError(f"out shares memory with {name}; give it memory of its own")


def sample_by_operator(
    pattern: SparsePattern,
    problem: SddmmProblem,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    alpha: float,
    backend: str | None,
    kernel: str | None,
    calls: int,
) -> Tensor:
    """The values of a call by the torch operator, which autograd follows."""
    CACHE.of_pattern(pattern)  # from which the operator takes plans
    result: Tensor = torch.ops.sddmm.sddmm(
        pattern.major_indices,
        pattern.col_indices,
        a,
        b,
        values,
        compressed=pattern.is_csr,
        blocksize=pattern.blocksize,
        alpha=alpha,
        out_dtype=problem.out_dtype,
        precision=problem.precision,
        backend=backend,
        kernel_name=kernel,
        calls=calls,
    )
    return result


def _rebuild(
    pattern: SparsePattern,
    problem: SddmmProblem,
    requests: tuple[str | None, str | None, int],
    alpha: float,
    values: Tensor | None,
    transposed: bool,
) -> Plan:
    problem = problem._replace(device=pattern.device)
    prepared_plan = CACHE.get_or_prepare(pattern, problem, *requests)
    return Plan(pattern, prepared_plan, alpha, values, transposed)


def _version(S: Tensor | None) -> int:
    """Torch's count of S's changes in place; tensors made in inference mode have none."""
    return 0 if S is None or S.is_inference() else S._version


def _same_memory(x: Tensor | None, y: Tensor | None) -> bool:
    if x is None or y is None:
        return True
    return x.data_ptr() == y.data_ptr() and x.shape == y.shape


def _check_size(pattern: SparsePattern, problem: SddmmProblem) -> None:
    """Raise ValueError unless the pattern still has the number of nonzeros that was planned."""
    required = problem.nnz, problem.index_dtype, problem.device
    if required != (pattern.nnz, pattern.index_dtype, pattern.device):
        raise ValueError(
            f"S had {problem.nnz} nonzeros ({dtype_name(problem.index_dtype)}, {problem.device}) "
            f"when it was planned and has {pattern.nnz} ({dtype_name(pattern.index_dtype)}, "
            f"{pattern.device}) now; make a new plan of it"
        )
