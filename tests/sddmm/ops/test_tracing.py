"""torch.compile, export, make_fx, torch.func and forward-mode AD see the operator, or say no."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import scipy.sparse
import torch
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import sddmm
from sddmm.ops.routing import is_plain
from sddmm.testing import random_pattern
from tests.sddmm.patterns import csr_tensor

# README says what torch.compile and torch.export take from which release on.
BEFORE_2_11 = pytest.mark.skipif(torch.__version__ < (2, 11), reason="needs torch 2.11")
BEFORE_2_13 = pytest.mark.skipif(torch.__version__ < (2, 13), reason="needs torch 2.13")

CSR = random_pattern(4, 5, 6)
COO = random_pattern(4, 5, 6, layout="coo", shuffled=True)
TUPLE = (COO.row_indices, COO.col_indices, (4, 5))
A, B, V = torch.randn(4, 3), torch.randn(3, 5), torch.randn(6)
csr = partial(csr_tensor, CSR)


def coo(values: torch.Tensor) -> torch.Tensor:
    indices = torch.stack([COO.row_indices, COO.col_indices])
    return torch.sparse_coo_tensor(indices, values, (4, 5), is_coalesced=True)


PLAN = sddmm.plan(CSR, k=3, dtype=torch.float32, alpha=0.5)
PLAN_OF_CSR = sddmm.plan(csr(V), k=3, dtype=torch.float32)
PLAN_OF_COO = sddmm.plan(coo(V), k=3, dtype=torch.float32)
PLAN_OF_CSC = sddmm.plan(
    scipy.sparse.csc_array(csr(V).to_dense().numpy()), k=3, dtype=torch.float32, scale=False
)

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CALLS: dict[str, Call] = {
    "pattern": lambda a, b: sddmm.sddmm(CSR, a, b, alpha=0.5),
    "coo pattern": lambda a, b: sddmm.sddmm(COO, a, b, out_dtype=torch.float64),
    "tuple": lambda a, b: sddmm.sddmm(TUPLE, a, b),
    "plan": lambda a, b: PLAN.run(a, b),
    "plan of csr": lambda a, b: PLAN_OF_CSR.run(a, b),
    "plan of coo": lambda a, b: PLAN_OF_COO.run(a, b),
    "plan of csc": lambda a, b: PLAN_OF_CSC.run(a, b),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def gradients(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The values of a function and its gradients, at copies of the inputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    values = function(*leaves)
    values.square().sum().backward()
    return [values.detach(), *(x.grad for x in leaves if x.grad is not None)]


def assert_same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(got) == len(expected)
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y)


def whole(function: Any, **options: Any) -> Any:
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CALLS)
def test_compiled_without_a_graph_break_it_is_as_in_eager(name: str, dynamic: bool | None) -> None:
    call = CALLS[name]
    compiled = whole(lambda a, b: call(a * 2, b).relu(), dynamic=dynamic)
    assert_same(gradients(compiled, A, B), gradients(lambda a, b: call(a * 2, b).relu(), A, B))


def test_indices_sizes_and_alpha_may_be_arguments_of_any_size() -> None:
    def sampled(rows: Any, cols: Any, a: Any, b: Any, alpha: float) -> torch.Tensor:
        return sddmm.sddmm((rows, cols, (a.shape[-2], b.shape[-1])), a, b, alpha=alpha)

    graphs = 0

    def count(graph: Any, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph

    compiled = torch.compile(sampled, fullgraph=True, backend=count, dynamic=True)
    for m, n, k, nnz, alpha in ((4, 5, 3, 6, 0.5), (7, 8, 9, 30, 0.5), (6, 11, 2, 17, 0.5)):
        pattern = random_pattern(m, n, nnz, layout="coo", shuffled=True)
        a, b = torch.randn(2, m, k), torch.randn(2, k, n)
        arguments = (pattern.row_indices, pattern.col_indices, a, b, alpha)
        torch.testing.assert_close(compiled(*arguments), sampled(*arguments))
    assert graphs == 1
    torch.testing.assert_close(compiled(*arguments[:4], 2.0), sampled(*arguments[:4], 2.0))


def test_marked_dimensions_stay_dynamic() -> None:
    """mark_dynamic raises where the traced code would fix a size."""
    compiled = whole(lambda a, b: sddmm.sddmm(CSR, a, b))
    for k in (3, 8, 13):
        a, b = torch.randn(4, k), torch.randn(k, 5)
        torch._dynamo.mark_dynamic(a, 1)
        torch._dynamo.mark_dynamic(b, 0)
        torch.testing.assert_close(compiled(a, b), sddmm.sddmm(CSR, a, b))


@BEFORE_2_13
def test_a_pattern_may_be_an_argument_and_may_be_made_inside() -> None:
    taking = whole(lambda S, a, b: sddmm.sddmm(S, a, b))
    making = whole(lambda r, c, a, b: sddmm.sddmm(sddmm.SparsePattern.from_coo(r, c, (4, 5)), a, b))
    for S in (CSR, COO):
        torch.testing.assert_close(taking(S, A, B), sddmm.sddmm(S, A, B))
    torch.testing.assert_close(making(*TUPLE[:2], A, B), sddmm.sddmm(TUPLE, A, B))


def test_gradients_of_values_that_a_plan_holds() -> None:
    results = []
    for container in (csr, coo):
        for compiler in (lambda f: f, whole):
            values = V.clone().requires_grad_()
            plan = sddmm.plan(container(values), k=3, dtype=torch.float32)
            compiler(lambda a, b: plan.run(a, b) * 2)(A, B).square().sum().backward()  # noqa: B023
            results.append(values.grad)
        torch.testing.assert_close(results[-1], results[-2])


def test_out_is_filled_in_a_graph() -> None:
    out = torch.zeros(6)
    assert whole(lambda a, b, out: PLAN.run(a, b, out=out))(A, B, out) is out
    torch.testing.assert_close(out, PLAN.run(A, B))


def test_inductor_calls_the_operator() -> None:
    with torch.no_grad():
        compiled = torch.compile(CALLS["pattern"], fullgraph=True)
        torch.testing.assert_close(compiled(A, B), CALLS["pattern"](A, B))


FIRST_CALL = """
import torch, sddmm
S = (torch.tensor([0, 2, 1]), torch.tensor([1, 0, 2]), (3, 3))
pattern = sddmm.SparsePattern.from_coo(*S)
a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 3)
for given in (pattern, S):
    f = torch.compile(lambda a, b: sddmm.sddmm(given, a, b), fullgraph=True, backend="aot_eager")
    got = f(a, b)
    got.sum().backward()
    torch.testing.assert_close(got, (a @ b)[S[0], S[1]])
"""


@pytest.mark.slow
def test_the_first_call_of_a_process_may_be_compiled() -> None:
    subprocess.run([sys.executable, "-c", FIRST_CALL], check=True, timeout=300)


@pytest.mark.parametrize("container", [csr, coo])
def test_torch_takes_no_sparse_tensor_into_a_whole_graph(container: Any) -> None:
    """torch.compile refuses them all; what says so is torch."""
    S = container(V)
    for function, arguments in (
        (lambda a, b: sddmm.sddmm(S, a, b), (A, B)),
        (lambda S, a, b: sddmm.sampled_addmm(S, a, b), (S, A, B)),
    ):
        with pytest.raises(torch._dynamo.exc.Unsupported, match="does not support sparse Tensors"):
            whole(function)(*arguments)


@BEFORE_2_11
@pytest.mark.parametrize("container", [csr, coo])
@pytest.mark.parametrize("dynamic", [None, True])
def test_sparse_tensors_break_the_graph_and_are_right(container: Any, dynamic: bool | None) -> None:
    def scaled(S: Any, a: Any, b: Any) -> torch.Tensor:
        return sddmm.sddmm(S, a.relu(), b, alpha=2.0).values() * 3

    def added(S: Any, a: Any, b: Any) -> torch.Tensor:
        return sddmm.sampled_addmm(S, a.relu(), b, beta=0.5).values() * 3

    for function in (scaled, added):
        compiled = torch.compile(function, backend="aot_eager", dynamic=dynamic)
        results = [
            gradients(lambda a, b, v, f=f: f(container(v), a, b), A, B, V)
            for f in (function, compiled)
        ]
        assert_same(*results)


@BEFORE_2_11
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["pattern", "tuple", "plan"])
def test_exported_it_is_one_operator(name: str, strict: bool) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.cols = TUPLE[0].clone(), TUPLE[1].clone()

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            if name == "tuple":
                return sddmm.sddmm((self.rows, self.cols, (4, 5)), a, b)
            return CALLS[name](a, b)

    program = torch.export.export(Model(), (A, B), strict=strict)
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert calls == [torch.ops.sddmm.sddmm.default]
    other = torch.randn(4, 3)
    torch.testing.assert_close(program.module()(other, B), CALLS[name](other, B))


@BEFORE_2_11
@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_takes_any_k(strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return sddmm.sddmm(CSR, a, b)

    k = torch.export.Dim("k", min=2)
    shapes = ({1: k}, {0: k})
    program = torch.export.export(Model(), (A, B), strict=strict, dynamic_shapes=shapes)
    a, b = torch.randn(4, 9), torch.randn(9, 5)
    torch.testing.assert_close(program.module()(a, b), sddmm.sddmm(CSR, a, b))


@pytest.mark.parametrize("strict", [True, False])
def test_torch_exports_no_csr_tensor(strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, S: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
            return sddmm.sddmm(S, a, b)

    with pytest.raises((RuntimeError, torch._dynamo.exc.Unsupported)):
        torch.export.export(Model(), (csr(V), A, B), strict=strict)


@BEFORE_2_11
def test_a_plan_is_made_outside_of_what_is_compiled() -> None:
    with pytest.raises(Exception, match="make the plan outside"):
        whole(lambda a, b: sddmm.plan(CSR, k=3, dtype=torch.float32).run(a, b))(A, B)


@pytest.mark.parametrize("pre_dispatch", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_make_fx_records_the_operator(name: str, pre_dispatch: bool) -> None:
    graph = make_fx(CALLS[name], pre_dispatch=pre_dispatch)(A, B)
    assert torch.ops.sddmm.sddmm.default in [node.target for node in graph.graph.nodes]
    other = torch.randn(4, 3)
    torch.testing.assert_close(graph(other, B), CALLS[name](other, B))


@pytest.mark.parametrize("name", ["pattern", "plan"])
def test_a_torchscript_trace_holds_the_operator(name: str) -> None:
    traced = torch.jit.trace(CALLS[name], (A, B))
    other = torch.randn(4, 3)
    torch.testing.assert_close(traced(other, B), CALLS[name](other, B))


def test_fake_tensors_give_fake_values() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        a, b = torch.empty(2, 4, 3), torch.empty(2, 3, 5)
    values = sddmm.sddmm(CSR, a, b)
    assert isinstance(values, FakeTensor)
    assert values.shape == (2, 6)


def test_a_dispatch_mode_sees_the_operator() -> None:
    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    for call in CALLS.values():
        seen: list[Any] = []
        with Recorder():
            call(A, B)
        assert torch.ops.sddmm.sddmm.default in seen


def test_a_plain_call_does_not_go_by_the_operator() -> None:
    """The direct way costs less, and a default device is no reason to leave it."""
    assert is_plain(A, torch.nn.Parameter(B))
    with torch.device("cpu"), torch.inference_mode():
        assert is_plain(A, B)


def forward_mode(call: Call) -> Any:
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(A, A), B)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "derivative",
    [
        forward_mode,
        lambda f: torch.func.jvp(lambda a: f(a, B), (A,), (A,)),
        lambda f: torch.func.jacfwd(lambda b: f(A, b))(B),
        lambda f: forward_mode(lambda a, b: f(a, b.clone().requires_grad_())),
    ],
    ids=["dual", "jvp", "jacfwd", "with reverse mode"],
)
def test_forward_mode_is_refused_not_dropped(name: str, derivative: Any) -> None:
    with pytest.raises(NotImplementedError, match="has no forward-mode derivative"):
        derivative(CALLS[name])


@pytest.mark.parametrize("container", [csr, coo])
def test_forward_mode_of_sampled_addmm_and_of_the_operators_is_refused(container: Any) -> None:
    where = (COO.row_indices, COO.col_indices)
    for call in (
        lambda a, b: sddmm.sampled_addmm(container(V), a, b),
        lambda a, b: torch.ops.sddmm.sddmm(*where, a, b, None),
        lambda a, _: torch.ops.sddmm.spmm(*where, V, a, m=4, n=5, transpose=True),
    ):
        with pytest.raises(NotImplementedError, match="has no forward-mode derivative"):
            forward_mode(call)


def test_operands_without_a_tangent_are_as_ever_at_a_dual_level() -> None:
    with forward_ad.dual_level():
        torch.testing.assert_close(sddmm.sddmm(CSR, A, B), CALLS["pattern"](A, B) * 2)


def test_torch_func_gradients_are_refused_in_words() -> None:
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.hessian):
        with pytest.raises(NotImplementedError, match=r"use torch\.autograd"):
            transform(lambda a: sddmm.sddmm(CSR, a, B).sum())(A)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", CALLS)
def test_vmap_computes_each(name: str) -> None:
    batch = torch.randn(3, 4, 3)
    got = torch.vmap(lambda a: CALLS[name](a, B))(batch)
    torch.testing.assert_close(got, torch.stack([CALLS[name](a, B) for a in batch]))


def test_no_scipy_matrix_is_traced() -> None:
    M = scipy.sparse.csr_array(csr(V).to_dense().numpy())
    with pytest.raises(
        TypeError, match="S must be a torch sparse COO, CSR or BSR tensor, a Sparse"
    ):
        make_fx(lambda a, b: sddmm.sddmm(M, a, b))(A, B)
