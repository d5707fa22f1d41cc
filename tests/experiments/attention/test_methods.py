"""Every method gives the attention of the definition, or says why it does not serve."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from experiments.attention.case import Case, Step
from experiments.attention.methods import METHODS, gather_scatter, sdpa, turbo_gnn
from experiments.attention.objective import ATTENTION
from experiments.attention.verify import Reference
from experiments.bench.sources import SlidingWindow, Uniform
from tests.experiments.attention.cases import GRAPH, MASKS, SQUARE, case_of, definition

ON_GPU_ONLY = ("row_gather", "turbo_gnn")
ON_ANY = [name for name in METHODS.names() if name not in (*ON_GPU_ONLY, "flex")]


def method_of(name: str) -> Any:
    return METHODS.select([name])[name]


class Example(NamedTuple):
    """A case with its reference, which methods share, and its results by dense matrices."""

    case: Case
    reference: Reference
    expected: Step


def example_of(case: Case) -> Example:
    return Example(case, ATTENTION.reference(case), definition(case))


@functools.cache
def example(heads: int, backward: bool) -> Example:
    return example_of(case_of(heads=heads, backward=backward))


@functools.cache
def example_of_halves() -> Example:
    """Few nonzeros, so that rows and columns are empty."""
    source = Uniform(rows=50, cols=70, nnz=60)
    return example_of(case_of(source, "float16", heads=2, backward=True))


def check_all(name: str, own: Example, tolerance: float = 1e-4) -> None:
    """All trials of a method are right by their verdicts, and by the definition."""
    case, method = own.case, method_of(name)
    assert method.refuses(case) is None
    trials = ATTENTION.trials(method, case, method.prepare(case), own.reference)
    assert len(trials) == 2
    for trial in trials:
        step = trial.call()
        verdict = trial.check(step)
        assert (verdict.checked > 0, verdict.wrong) == (True, 0), name
        for got, exact in zip(step, own.expected, strict=True):
            assert (got is None) == (exact is None)
            if got is not None:
                torch.testing.assert_close(got.double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", ON_ANY)
@pytest.mark.parametrize(("heads", "backward"), [(1, False), (2, True)])
def test_each_method_is_right(name: str, heads: int, backward: bool) -> None:
    check_all(name, example(heads, backward))


@pytest.mark.parametrize("name", ["ours", "parts", "gather_scatter"])
def test_each_method_of_graphs_takes_halves_empty_rows_and_any_shape(name: str) -> None:
    check_all(name, example_of_halves(), tolerance=2e-2)


def test_flex_attention_computes_masks_in_the_blocks_that_the_pattern_has() -> None:
    case = case_of(SlidingWindow(length=150, window=4, global_tokens=1), heads=2)
    check_all("flex", example_of(case))
    flex = method_of("flex")
    assert flex.compile_ms(case) is None
    assert flex.refuses(replace(case, backward=True)) == "FlexAttention has no backward on a CPU"
    assert str(flex.refuses(case_of())).startswith("the pattern is no mask of tiles: Uniform is")


def test_what_computes_on_a_gpu_alone_says_so() -> None:
    reasons = [method_of(name).refuses(case_of()) for name in ON_GPU_ONLY]
    assert reasons == ["row_gather is a GPU kernel", "turbo_gnn computes on a GPU, not on a CPU"]


def test_turbo_gnn_refuses_what_it_cannot_compute_and_a_library_that_is_not_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reason(source: Any = SQUARE, **settings: Any) -> str | None:
        case = case_of(source, **settings)
        return turbo_gnn.refuses(replace(case, sampled=replace(case.sampled, device="cuda")))

    monkeypatch.setitem(sys.modules, "turbo_gnn", None)
    assert reason(GRAPH) == "turbo_gnn takes square matrices"
    assert reason() == "turbo_gnn computes d of 32, 64, 128, 256"
    assert str(reason(k=64)).startswith("turbo_gnn cannot be imported: ")


def test_turbo_gnn_gets_rows_as_its_keys_and_the_transpose_for_its_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in that computes what turbo-gnn's kernel does, for each row of the forward CSR."""

    class Graph(SimpleNamespace):
        @classmethod
        def from_csr(cls, *arrays: torch.Tensor) -> Graph:
            return cls(forward=arrays[:2], backward=arrays[2:])

    def aggregate(graph: Any, x: Any, Q: Any, K: Any, V: Any, scale: float) -> torch.Tensor:
        assert all(x.is_contiguous() for x in (Q, K, V))
        indptr, indices = graph.forward
        mask = torch.sparse_csr_tensor(indptr, indices, torch.ones(len(indices))).to_dense() > 0
        indptr, indices = graph.backward
        turned = torch.sparse_csr_tensor(indptr, indices, torch.ones(len(indices))).to_dense() > 0
        assert torch.equal(turned, mask.mT)
        scores = torch.einsum("ihd,jhd->hij", K, Q) * scale
        p = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return torch.einsum("hij,jhd->ihd", p, V)

    library = SimpleNamespace(
        AdjacencyForwardBackwardWithNodeBuckets=Graph, graph_transformer_aggr=aggregate
    )
    monkeypatch.setattr(turbo_gnn, "imported", lambda: library)
    case = case_of(heads=2, backward=True, k=32)
    step, expected = turbo_gnn.prepare(case)(), definition(case)
    for got, exact in zip(step, expected, strict=True):
        torch.testing.assert_close(got.double(), exact, atol=1e-4, rtol=1e-4)


def test_what_does_not_fit_in_memory_is_refused_by_its_counted_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("experiments.bench.memory.available_memory", lambda: 20_000)
    case = case_of(heads=2)
    bytes_of_rows = 300 * 2 * (3 * 16 * 4 + 4 * 8)
    assert gather_scatter.refuses(case) == (
        f"the gathered rows take {bytes_of_rows} bytes, more than half of 20000 available"
    )
    bytes_of_step = 300 * 2 * (7 * 16 * 4 + 4 * 8)
    assert str(bytes_of_step) in str(gather_scatter.refuses(replace(case, backward=True)))
    assert str(sdpa.refuses(case)).startswith("the dense masks and scores take 25600 bytes")
    assert sdpa.refuses(case_of(MASKS["causal"])) is None  # it needs no mask
    assert method_of("ours").refuses(case) is None


def test_dense_attention_refuses_rows_without_nonzeros() -> None:
    reason = sdpa.refuses(case_of(Uniform(rows=60, cols=60, nnz=50)))
    assert str(reason).startswith("a row without nonzeros would have no softmax")


def check_on_a_gpu(name: str, case: Case) -> None:
    method = method_of(name)
    if (reason := method.refuses(case)) is not None:
        assert name in ("flex", "turbo_gnn", "sdpa"), reason
        return
    run = method.prepare(case)
    for trial in ATTENTION.trials(method, case, run, ATTENTION.reference(case)):
        assert trial.check(trial.call()).wrong == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("backward", [False, True])
def test_each_method_is_right_on_a_gpu(name: str, dtype: str, heads: int, backward: bool) -> None:
    source = Uniform(rows=700, cols=700, nnz=9000)
    check_on_a_gpu(
        name, case_of(source, dtype, heads=heads, backward=backward, k=64, device="cuda")
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ours", "flex", "sdpa"])
@pytest.mark.parametrize("mask", ["window", "packed", "small blocks"])
def test_masks_are_right_on_a_gpu(name: str, mask: str) -> None:
    """Each of them is compiled for FlexAttention, which takes half a minute."""
    check_on_a_gpu(
        name, case_of(MASKS[mask], "float16", heads=2, backward=True, k=64, device="cuda")
    )
