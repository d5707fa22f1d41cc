"""SDDMM: the functions sddmm, sampled_addmm and plan; sddmm_operator.py is the torch operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.compiler import is_dynamo_compiling

import sddmm.prepared as prepared
from sddmm.backends.base import MANY_CALLS
from sddmm.backends.selection import CHOICES
from sddmm.cache import CACHE
from sddmm.cupy_arrays import make_cupy_wait
from sddmm.operands import (
    as_operands,
    check_scipy,
    check_values,
    identity,
    needs_grad,
    problem_of,
    real_number,
    remember,
    transpose_if_csc,
)
from sddmm.ops import traced
from sddmm.ops.csr_samples import can_sample_csr, sample_and_add_csr, sample_csr
from sddmm.ops.routing import ELSEWHERE, dynamo_callback, is_plain
from sddmm.ops.traced import TRACEABLE, needs_operator
from sddmm.plan import Plan, sample_by_operator
from sddmm.prepared import (
    FirstCalls,
    FirstRun,
    PlanStore,
    Signature,
    calls_to_expect,
    first_calls,
    plans_of,
    run_once,
)
from sddmm.problem import checked_integer, make_problem
from sddmm.sparse.containers import SparseInput, parse_sparse, to_container
from sddmm.sparse.pattern import SparsePattern


def sddmm(
    S: Any,
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    scale: bool = True,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
) -> Any:
    """Sampled dense-dense matrix product: alpha * (a @ b) at S's nonzeros, times S's values.

    S: an m x n torch sparse COO, CSR or BSR tensor; a scipy.sparse (or cupyx) coo, csr or csc
        matrix or array; a `SparsePattern`; or the COO tuple (row_indices, col_indices, shape).
        Indices int32 or int64, in any order; duplicates are sampled each.
    a: (m, k), b: (k, n); or (h, m, k) and (h, k, n) for h heads over one pattern. Any strides.
        float16, bfloat16, float32 or float64, the same for both and for S's values; torch tensors
        on S's device, or numpy or CuPy arrays. b is read as (n, k) rows: the transpose `bt.mT` of a
        contiguous (n, k) tensor is taken without a copy.
    scale: multiply by S's values, where S has any.
    out_dtype: of the result; the operands' if None. Half types accumulate in float32.
    precision: "ieee", or for float32 the least exact arithmetic to accept: "tf32x3" or "tf32".

    Returns S's kind with S's pattern, order and duplicates; the values, (nnz,), for a pattern or
    a tuple, which have no values to replace; the values, (h, nnz), with heads. Values are numpy if
    a and b are, and CuPy if both are CuPy, else a tensor. Those of a BSR pattern are ordered block
    by block: `values.view(-1, bm, bn)` has the blocks. Differentiable in a, b and S's values;
    once only through a torch sparse result, whose second derivatives torch loses, and not with a
    scipy or cupyx S, which carries no gradient: ValueError. The same sequence of calls gives the
    same bits, and so do its gradients: nothing is added by atomics.

    On a GPU the first call with a pattern is computed as is cheapest for a single run. The second
    prepares what pays over many, so it may round differently from the first; all further ones give
    its bits. With torch.use_deterministic_algorithms(True) the first call is prepared for many, so
    that all calls give the same bits. Calls with other sizes or dtypes of operands, or with
    another `scale`, count apart.

    What is prepared for torch indices is kept while they live (`cache_info`, `set_cache_limit`,
    `clear_cache`) and used for as long as they hold the same indices. Of a tuple's tensors torch
    counts the changes; the indices of a torch sparse tensor are compared at every call, which waits
    for the GPU and cannot be captured in a CUDA graph. A `SparsePattern` or a `plan` spares both.
    With numpy or scipy indices each call prepares anew. (SparsePattern says which changes torch
    cannot count.) A CPU prepares nothing for a CSR tensor without gradients: it checks the indices
    at every call, as it reads them.

    alpha is a real number, or a 0-dim tensor without gradient, which is read (and waits for the
    GPU). Autocast casts the operands as torch.mm's, but neither numpy's nor those of a scipy or
    cupyx S. torch.compile takes the call into its graph with a pattern or a tuple as S. It takes no
    sparse tensor into a graph: such a call breaks the graph, and raises with fullgraph=True.
    torch.export likewise; make_fx, jit.trace and vmap see the operator, but torch makes no CSR
    tensor of its result there. Forward mode (forward_ad, torch.func.jvp) and torch.func.grad raise
    NotImplementedError.

    Raises TypeError or ValueError, naming the argument, for operands that do not fit S or each
    other, indices out of range, and kinds, dtypes or devices that are not supported.
    """
    if not isinstance(S, TRACEABLE) if is_dynamo_compiling() else dynamo_callback():
        return _untraced_sddmm(
            S, a, b, alpha=alpha, scale=scale, out_dtype=out_dtype, precision=precision
        )
    if type(S) in ELSEWHERE:
        return ELSEWHERE[type(S)].sddmm(
            S, a, b, alpha=alpha, scale=scale, out_dtype=out_dtype, precision=precision
        )
    a, b, to_output = as_operands(a, b)
    if type(alpha) is not float:
        alpha = real_number(alpha, "alpha")
    if not is_plain(a, b) and needs_operator(S, to_output):
        parts = traced.parts_of(S)
        result = traced.sample(parts, a, b, alpha, scale, out_dtype, precision)
        return to_container(parts, result, to_output)
    if isinstance(S, SparsePattern):  # there is nothing to parse
        return to_output(_sample(S, a, b, None, alpha, out_dtype, precision))
    if a.is_cpu and to_output is identity and can_sample_csr(S, a, b):
        samples = sample_csr(S, a, b, alpha, scale, out_dtype, precision)
        if samples is not None:
            return samples
    sparse = parse_sparse(S, is_sampled_at_once=_is_sampled_at_once(S, a, b))
    values = sparse.values if scale else None
    if sparse.new_tensor is not None:
        return _sample_new(sparse, a, b, values, alpha, out_dtype, precision, to_output)
    pattern = sparse.pattern
    if sparse.transposed:
        a, b = transpose_if_csc(a, b, pattern, True)
    result = _sample(pattern, a, b, values, alpha, out_dtype, precision, sparse)
    return to_container(sparse, result, to_output)


def sampled_addmm(S: Any, a: Any, b: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
    """beta * S + alpha * (a @ b) at S's nonzeros: torch.sparse.sampled_addmm for any S with values.

    Arguments, kinds and errors as in `sddmm`; S's values are added here, not multiplied. With
    beta = 0 they are not read, so NaN in them does not spread. Of half types the sum alone is
    rounded. Where torch's function differs: it takes CSR tensors only, batches of them too, but not
    COO; with operands of several heads it returns a batch of CSR tensors, and this function the
    values, (h, nnz); its arguments are named input, mat1, mat2 and out, and here there is no out.
    """
    if not isinstance(S, TRACEABLE) if is_dynamo_compiling() else dynamo_callback():
        return _untraced_sampled_addmm(S, a, b, beta=beta, alpha=alpha)
    if type(S) in ELSEWHERE:
        return ELSEWHERE[type(S)].sampled_addmm(S, a, b, beta=beta, alpha=alpha)
    a, b, to_output = as_operands(a, b)
    beta, alpha = real_number(beta, "beta"), real_number(alpha, "alpha")
    if not is_plain(a, b) and needs_operator(S, to_output):
        parts = traced.parts_of(S)
        return to_container(parts, traced.sampled_addmm(parts, a, b, beta, alpha), to_output)
    if a.is_cpu and to_output is identity and can_sample_csr(S, a, b):
        samples = sample_and_add_csr(S, a, b, beta, alpha)
        if samples is not None:
            return samples
    sparse = parse_sparse(S, is_sampled_at_once=_is_sampled_at_once(S, a, b))
    values = traced.require_values(sparse.values)
    read_values = values if beta != 0 else None
    sum_dtype = traced.sum_dtype(a.dtype, beta)
    pattern = sparse.pattern
    a, b = transpose_if_csc(a, b, pattern, sparse.transposed)
    result = _sample(pattern, a, b, read_values, alpha, sum_dtype, "ieee", sparse, False)
    return to_container(sparse, traced.add_scaled(result, beta, values).to(a.dtype), to_output)


# torch.compile takes no sparse tensor into a graph and runs such calls between two graphs. It must
# not trace them: its tracer fails on views of sparse tensors.
_untraced_sddmm = _disable_dynamo(sddmm)
_untraced_sampled_addmm = _disable_dynamo(sampled_addmm)


def plan(
    S: Any,
    *,
    k: int,
    dtype: torch.dtype,
    heads: int | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
    alpha: float = 1.0,
    scale: bool = True,
    backend: str | None = None,
    kernel: str | None = None,
    calls: int | None = None,
) -> Plan:
    """Do S's part of the work once: `plan(S, k=k, dtype=a.dtype).run(a, b)` gives sddmm's values.

    S, out_dtype, precision, alpha, scale: as in `sddmm`; S's values are referenced, not copied, and
    so are the index tensors of a tuple; a torch sparse tensor's are copied, as not all changes of
    them are counted. A SparsePattern keeps what is prepared for it. (Each run reads the values of a
    cupyx S on torch's current stream, which does not wait for changes that CuPy makes on another.)
    k, dtype, heads: of the operands to come. backend: "cuda", "cpu", "torch_csr" or "reference" to
    demand one, whose refusal is then a ValueError; by default the first that does not refuse.
    kernel: demand one GPU kernel by its name, or "hybrid"; by default the one that a cost model
        takes for the quickest. `explain()` lists them all.
    calls: the number of runs to expect, over which preparing must pay; 1 gives what is cheapest for
        a single run. By default many, a thousand.

    `run` takes a and b as (m, k) and (k, n) and returns values in S's order; `explain()` says what
    was chosen and why.
    """
    if type(S) in ELSEWHERE:
        distributed_plan: Plan = ELSEWHERE[type(S)].plan(
            S, k=k, dtype=dtype, heads=heads, out_dtype=out_dtype, precision=precision,
            alpha=alpha, scale=scale, backend=backend, kernel=kernel, calls=calls,
        )  # fmt: skip
        return distributed_plan
    alpha = real_number(alpha, "alpha")
    calls = MANY_CALLS if calls is None else checked_integer(calls, "calls", 1)
    if is_dynamo_compiling():
        raise RuntimeError(
            "torch.compile cannot trace sddmm.plan, which reads S; make the plan outside and call "
            "its run inside, or call sddmm"
        )
    sparse = parse_sparse(S, use_cache=False)
    pattern = sparse.stable_pattern()
    if sparse.is_cupyx:
        make_cupy_wait(pattern.device)
    values = sparse.values if scale else None
    problem = make_problem(
        pattern, k=k, dtype=dtype, heads=heads, out_dtype=out_dtype, precision=precision,
        scaled=values is not None,
    )  # fmt: skip
    if values is not None:
        check_values(values, problem)
        values = traced.without_base(values)
    prepared_plan = CACHE.get_or_prepare(pattern, problem, backend, kernel, calls)
    owner = S if isinstance(S, Tensor) else None
    return Plan(pattern, prepared_plan, alpha, values, sparse.transposed, sparse.source, owner)


def _is_sampled_at_once(S: Any, a: Tensor, b: Tensor) -> bool:
    """Whether nothing of a call with a torch sparse tensor outlives it: no gradient, no plan that
    later calls must give the bits of."""
    if not isinstance(S, Tensor) or torch.are_deterministic_algorithms_enabled():
        return False
    requires_grad = a.requires_grad or b.requires_grad or S.requires_grad
    return not (requires_grad and torch.is_grad_enabled())  # needs_grad, without a call


def _sample(
    pattern: SparsePattern,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    alpha: float,
    out_dtype: torch.dtype | None,
    precision: str,
    sparse: SparseInput | None = None,
    read_values: bool = True,
) -> Tensor:
    """The values of a call, by one look-up of the plan from the third call on.

    Operands are checked when their signature is new, values at every call. sparse: what S was
    parsed into, unless S is the pattern itself. read_values: whether to multiply by the values.
    """
    signature = (
        a.shape, b.shape, a.dtype, b.dtype, a.device, b.device, a.layout, b.layout,
        out_dtype, precision, values is not None and read_values,
    )  # fmt: skip
    plan = plans = None
    is_kept = sparse is None or not (sparse.is_scipy or sparse.new_tensor is not None)
    if is_kept:
        plans = pattern.derive(prepared.PLANS, PlanStore)  # plans_of, without a call
        plan = plans.by_signature.get(signature)
    if plan is None:
        first = _first_calls(pattern, a, b, signature, is_kept)
        problem = first.problem
    else:
        problem = plan.problem
    if values is not None:
        check_values(values, problem)
        if not read_values:
            values = None
    if plans is None:
        assert sparse is not None
        result: Tensor = _sample_once(pattern, first, a, b, values, alpha, sparse)
        return result
    if plan is None:
        return _sample_by_new_plan(
            pattern, first, a, b, values, alpha, plans, signature, sparse is None
        )
    if needs_grad(a, b, values):
        return Plan(pattern, plan, alpha, values).sample(a, b)
    return plan.compute(a, b, values, alpha)


def _sample_by_new_plan(
    pattern: SparsePattern,
    first: FirstCalls,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    alpha: float,
    plans: PlanStore,
    signature: Signature,
    is_callers: bool,
) -> Tensor:
    """The values of a call whose signature leads to no plan. is_callers: whether S is a pattern."""
    problem = first.problem
    # The cached pattern of the very tensors of a caller's pattern may have the plan already.
    owner = CACHE.find(pattern) if is_callers else pattern
    calls = calls_to_expect(
        plans if owner is pattern else plans_of(owner), problem, first.backend
    )  # fmt: skip
    if needs_grad(a, b, values):
        return sample_by_operator(owner, problem, a, b, values, alpha, None, None, calls)
    run = FirstRun(problem, a, b, values, alpha)
    if calls == 1:
        return CACHE.run_first(owner, first, run)
    plan = CACHE.get_or_prepare(owner, problem, calls=calls, first_run=run)
    if is_callers:
        CACHE.of_pattern(pattern)  # for calls with its tensors as a tuple
    plans.add_signature(signature, plan)
    return run.result(plan.execute)


def _sample_once(
    pattern: SparsePattern,
    first: FirstCalls,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    alpha: float,
    sparse: SparseInput,
) -> Any:
    """The values of a call of which nothing is kept but, of a sparse tensor, that it came."""
    calls, problem = 1, first.problem
    if sparse.is_scipy:
        result_dtype = problem.out_dtype if problem.heads is None else None
        check_scipy(result_dtype, "pass out_dtype=torch.float32", a, b)
        if torch.are_deterministic_algorithms_enabled():
            calls = MANY_CALLS
    elif sparse.new_tensor is not None:
        sparse.new_tensor.first_problem = problem
    return run_once(pattern, first, a, b, values, alpha, calls)


def _sample_new(
    sparse: SparseInput,
    a: Tensor,
    b: Tensor,
    values: Tensor | None,
    alpha: float,
    out_dtype: torch.dtype | None,
    precision: str,
    to_output: Callable[[Tensor], Any],
) -> Any:
    """The result of the first call with a torch sparse tensor, in its kind. `_sample` gives its
    values, in more steps."""
    signature = (
        a.shape, b.shape, a.dtype, b.dtype, a.device, b.device, a.layout, b.layout,
        out_dtype, precision, values is not None,
    )  # fmt: skip
    pattern, new_tensor = sparse.pattern, sparse.new_tensor
    assert new_tensor is not None
    first = _first_calls(pattern, a, b, signature, False)
    problem = first.problem
    if values is not None and (values.dtype != problem.dtype or values.shape != (problem.nnz,)):
        check_values(values, problem)  # which raises; torch has compared the devices
    new_tensor.first_problem = problem
    wrap = sparse.wrap
    if to_output is not identity or problem.heads is not None:

        def wrap(out: Tensor) -> Any:
            return to_container(sparse, out, to_output)

    return run_once(pattern, first, a, b, values, alpha, 1, wrap)


# First calls by the metadata of pattern and operands. Equal calls need no second check of them, and
# one look-up leads to what computes them.
_FIRST_CALLS: dict[tuple[object, ...], FirstCalls] = {}
CHOICES.append(_FIRST_CALLS.clear)


def _first_calls(
    pattern: SparsePattern, a: Tensor, b: Tensor, signature: Signature, is_kept: bool
) -> FirstCalls:
    """What computes a first call with this signature; raises if the operands do not fit the
    pattern. is_kept: whether the pattern stays, for later calls."""
    key = (
        pattern.shape, pattern.col_indices.numel(), pattern.blocksize, pattern.index_dtype,
        pattern.device, pattern.is_csr, is_kept, signature,
    )  # fmt: skip
    first = _FIRST_CALLS.get(key)
    if first is None:
        *_, out_dtype, precision, scaled = signature
        problem = problem_of(pattern, a, b, out_dtype, precision, bool(scaled))
        first = remember(_FIRST_CALLS, key, first_calls(problem, pattern.is_csr, is_kept))
    return first
