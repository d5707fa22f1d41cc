"""A pattern that its caller drops serves the backward all the same, and goes with the graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sddmm
from sddmm import SparsePattern
from sddmm.testing import emulated_gpu, random_pattern

SIZE, NNZ, D = 60, 300, 8


def dense() -> Tensor:
    return torch.randn(SIZE, D, requires_grad=True)


def sampled(S: SparsePattern) -> Tensor:
    return sddmm.sddmm(S, dense(), dense().mT)


def multiplied(S: SparsePattern) -> Tensor:
    return sddmm.spmm(S, dense(), values=torch.randn(S.nnz))


def shared(S: SparsePattern) -> Tensor:
    return sddmm.softmax(S, torch.randn(S.nnz, requires_grad=True))


def attended(S: SparsePattern) -> Tensor:
    return sddmm.sparse_attention(S, dense(), dense(), dense())


def pattern(shuffled: bool) -> SparsePattern:
    return random_pattern(SIZE, SIZE, NNZ, layout="coo", shuffled=shuffled)


@pytest.mark.parametrize("operator", [sampled, multiplied, shared, attended])
@pytest.mark.parametrize("shuffled", [False, True])
def test_the_backward_analyses_nothing_again(
    operator: Callable[[SparsePattern], Tensor], shuffled: bool
) -> None:
    """As much as with a pattern that the caller keeps."""

    def launches_of_backward(keeps: bool) -> list[str]:
        S = pattern(shuffled)
        out = operator(S)
        if not keeps:
            del S
        launches.clear()
        out.sum().backward()
        return list(launches)

    with emulated_gpu() as launches:
        kept = launches_of_backward(keeps=True)
        assert launches_of_backward(keeps=False) == kept
    assert kept.count("analyse") <= (operator is sampled)  # its first call has made no plan


@pytest.mark.parametrize("operator", [sampled, multiplied, shared, attended])
def test_it_goes_with_the_saved_tensors(operator: Callable[[SparsePattern], Tensor]) -> None:
    S = pattern(False)
    out = operator(S)
    seen = weakref.ref(S)
    del S
    assert seen() is not None
    loss = out.sum()
    loss.backward(retain_graph=True)
    assert seen() is not None
    loss.backward()
    assert seen() is None  # though the loss, and the graph with it, are kept


def test_it_goes_with_a_graph_that_has_no_backward() -> None:
    S = pattern(False)
    out = multiplied(S)
    seen = weakref.ref(S)
    del S
    assert seen() is not None
    del out
    assert seen() is None


def test_without_gradients_nothing_is_held() -> None:
    S = pattern(False)
    with torch.no_grad():
        out = multiplied(S)
    seen = weakref.ref(S)
    del S
    assert seen() is None
    del out


def test_indices_changed_before_the_backward_are_refused_as_ever() -> None:
    S = pattern(False)
    out = multiplied(S)
    S.col_indices.fill_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
