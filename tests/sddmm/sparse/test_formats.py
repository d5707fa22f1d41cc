"""Patterns of other libraries' matrices, masks and graphs, and patterns as torch tensors again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.autograd import gradcheck

import sddmm
from sddmm import SparsePattern
from sddmm.testing import assert_close, random_pattern

CSR = random_pattern(9, 7, 30)
COO = random_pattern(9, 7, 30, layout="coo", shuffled=True)
VALUES = torch.arange(1.0, 31.0)
EDGES = torch.tensor([[0, 2, 2, 1], [1, 0, 1, 3]])


def to_dense(pattern: SparsePattern, values: torch.Tensor) -> torch.Tensor:
    dense = torch.zeros(pattern.shape, dtype=values.dtype)
    where = (pattern.row_ids.long(), pattern.col_indices.long())
    return dense.index_put_(where, values, accumulate=True)


MATRIX = to_dense(CSR, VALUES)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_torch_matrix_gives_the_pattern_of_its_values_in_their_order(layout: Any) -> None:
    S = MATRIX.to_sparse(layout=layout)
    pattern = SparsePattern.from_torch(S)
    assert pattern.is_csr == (layout == torch.sparse_csr)
    assert torch.equal(to_dense(pattern, S.values()), MATRIX)


def test_a_pattern_of_a_torch_matrix_has_its_own_memory() -> None:
    rows, cols = COO.row_ids.clone(), COO.col_indices.clone()
    S = torch.sparse_coo_tensor(torch.stack([rows, cols]), VALUES, (9, 7))
    C = torch.sparse_csr_tensor(CSR.crow_indices.clone(), CSR.col_indices.clone(), VALUES, (9, 7))
    for matrix, pattern in ((S, COO), (C, CSR)):
        taken = SparsePattern.from_torch(matrix)
        (matrix._indices() if matrix is S else matrix.col_indices()).zero_()
        assert taken == pattern


def test_an_uncoalesced_matrix_keeps_its_duplicates() -> None:
    S = torch.sparse_coo_tensor([[1, 0, 1], [2, 0, 2]], torch.ones(3), (2, 3))
    assert SparsePattern.from_torch(S) == SparsePattern.from_coo([1, 0, 1], [2, 0, 2], (2, 3))


@pytest.mark.parametrize("shape", [(9, 7), (0, 7), (9, 0)])
def test_a_mask_gives_the_pattern_of_its_true_entries(shape: tuple[int, int]) -> None:
    mask = torch.rand(shape) < 0.4
    pattern = SparsePattern.from_torch(mask)
    assert torch.equal(to_dense(pattern, torch.ones(pattern.nnz)), mask.float())
    a, b = torch.randn(shape[0], 3), torch.randn(3, shape[1])
    assert torch.allclose(sddmm.sddmm(pattern, a, b), (a @ b)[mask])


@pytest.mark.parametrize("kind", ["coo", "csr", "csc"])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_a_scipy_matrix_gives_the_pattern_of_its_data_in_its_order(
    kind: str, index_dtype: Any
) -> None:
    S = scipy.sparse.coo_array(MATRIX.numpy()).asformat(kind)
    for name in ("row", "col") if kind == "coo" else ("indices", "indptr"):
        if kind != "coo":
            setattr(S, name, getattr(S, name).astype(index_dtype))
    pattern = SparsePattern.from_scipy(S)
    assert torch.equal(to_dense(pattern, torch.from_numpy(S.data)), MATRIX)
    before = pattern.fingerprint
    (S.row if kind == "coo" else S.indices)[:] = 0
    assert SparsePattern.from_coo(pattern.row_ids, pattern.col_indices, (9, 7)).fingerprint
    assert pattern.compute_fingerprint() == before


def test_sources_of_edges_are_rows_and_targets_are_columns() -> None:
    expected = SparsePattern.from_coo([0, 2, 2, 1], [1, 0, 1, 3], (4, 4))
    for edge_index in (EDGES, EDGES.numpy(), (EDGES[0], EDGES[1]), EDGES.tolist()):
        assert SparsePattern.from_edge_index(edge_index, 4) == expected
    bipartite = SparsePattern.from_edge_index(EDGES, (3, 4))
    assert bipartite.shape == (3, 4)
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    scores = sddmm.sddmm(expected, x, y.mT)
    torch.testing.assert_close(scores, (x[EDGES[0]] * y[EDGES[1]]).sum(1))
    aggregated = sddmm.spmm(expected, x, values=scores, transpose=True)
    messages = torch.zeros(4, 5).index_add_(0, EDGES[1], scores[:, None] * x[EDGES[0]])
    torch.testing.assert_close(aggregated, messages)
    torch.testing.assert_close(sddmm.spmm(expected.T, x, values=scores), messages)


@pytest.mark.parametrize("pattern", [CSR, COO], ids=repr)
def test_a_pattern_with_values_is_a_torch_matrix(pattern: SparsePattern) -> None:
    S = pattern.to_torch(VALUES)
    assert S.layout == (torch.sparse_csr if pattern.is_csr else torch.sparse_coo)
    assert torch.equal(S.to_dense(), to_dense(pattern, VALUES))
    assert SparsePattern.from_torch(S) == pattern
    values = VALUES.double().requires_grad_()
    assert gradcheck(lambda v: pattern.to_torch(v).to_dense(), values, fast_mode=True)
    a, b = torch.randn(9, 3), torch.randn(3, 7)
    result = sddmm.sddmm(S, a, b)
    assert_close(result.values() if pattern.is_csr else result._values(), S, a, b)


def test_a_csr_tensor_has_no_strides_that_cusparse_would_not_read() -> None:
    spread = SparsePattern.from_csr(
        CSR.major_indices.repeat_interleave(2)[::2],
        CSR.col_indices.repeat_interleave(3)[::3],
        CSR.shape,
    )
    S = spread.to_torch(VALUES.repeat_interleave(2)[::2])
    assert all(x.is_contiguous() for x in (S.crow_indices(), S.col_indices(), S.values()))
    torch.testing.assert_close(S.to_dense(), CSR.to_torch(VALUES).to_dense())


def test_a_sorted_pattern_gives_a_coalesced_matrix_and_an_unsorted_one_does_not() -> None:
    assert CSR.to_coo().to_torch(VALUES).is_coalesced()
    assert not COO.to_torch(VALUES).is_coalesced()
    twice = SparsePattern.from_coo([0, 0], [1, 1], (2, 2)).to_torch(torch.ones(2))
    assert not twice.is_coalesced()
    assert twice.coalesce().values().tolist() == [2]


class Graph:
    """As much of a PyTorch Geometric Data or a DGL graph as an error message asks about."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("S", "message"),
    [
        (EDGES, r"an edge_index, give the tuple .* SparsePattern.from_edge_index\(edge_index, num"),
        (MATRIX > 0, r"if it is a mask, give SparsePattern.from_torch\(mask\), made once"),
        (MATRIX, r"convert a mask with S.to_sparse_csr\(\), or give SparsePattern.from_torch\(S"),
        (MATRIX.to_sparse_csc(), r"sparse_csc; convert it with S.to_sparse_csr\(\)"),
        (
            torch.ones(4, 4).to_sparse_bsc((2, 2)),
            r"sparse_bsc; convert it with S.to_sparse_bsr\(blocksize\)",
        ),
        ("csr", r"got <class 'str'>"),
        (MATRIX.numpy(), r"ndarray.* of shape \(9, 7\); give a mask as a torch tensor to"),
        (Graph(edge_index=EDGES), r"from_edge_index\(S.edge_index, S.num_nodes\)"),
        (Graph(edges=None, num_nodes=4), r"from_edge_index\(S.edges\(\), S.num_nodes\(\)\)"),
        (Graph(to_torch_sparse_csr_tensor=0), r"convert it with S.to_torch_sparse_csr_tensor\(\)"),
    ],
)  # fmt: skip
def test_what_is_no_pattern_yet_is_refused_with_the_way_to_one(S: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        sddmm.sddmm(S, torch.ones(9, 2), torch.ones(2, 7))
    with pytest.raises(TypeError, match=message):
        sddmm.spmm(S, torch.ones(7, 2))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SparsePattern.from_torch(MATRIX), TypeError, "give the mask S != 0, or for an ed"),
        (
            lambda: SparsePattern.from_torch(torch.ones(4, 4).to_sparse_bsc((1, 2))), TypeError,
            r"blocks by column; give S.to_sparse_bsr\(\(1, 2\)\)",
        ),
        (lambda: SparsePattern.from_torch(torch.ones(2, 2, 2) > 0), ValueError, "S must be 2-D"),
        (lambda: SparsePattern.from_torch(MATRIX.numpy()), TypeError, "S must be a torch tensor"),
        (lambda: SparsePattern.from_scipy(MATRIX), TypeError, "must be a scipy.sparse or cupyx"),
        (
            lambda: SparsePattern.from_scipy(scipy.sparse.lil_matrix((2, 2))), TypeError,
            r"format lil; convert it with matrix.tocsr\(\)",
        ),
        (lambda: SparsePattern.from_edge_index(EDGES.T, 4), ValueError, r"got shape \(4, 2\)"),
        (
            lambda: SparsePattern.from_edge_index(EDGES.float(), 4), TypeError,
            r"edge_index\[0\], the sources must be int32 or int64, got torch.float32",
        ),
        (lambda: SparsePattern.from_edge_index(EDGES, 3).check(), ValueError, "is 3; valid are 0"),
        (lambda: SparsePattern.from_edge_index(EDGES, -1), ValueError, "num_nodes .*sizes >= 0"),
        (lambda: SparsePattern.from_edge_index(EDGES, None), TypeError, "num_nodes must be a size"),
        (lambda: SparsePattern.from_edge_index(EDGES[0, 0], 4), ValueError, r"got shape \(\)"),
        (lambda: SparsePattern.from_coo(*EDGES, {4, 5}), ValueError, r"two sizes \(m, n\), got {"),
        (
            lambda: SparsePattern.from_torch(MATRIX.bool().to("meta")), TypeError,
            "S must be .* got one that is on meta, which holds no values",
        ),
        (
            lambda: SparsePattern.from_torch(torch.nested.nested_tensor([VALUES.bool()])),
            TypeError, "S must be .* got one that is a nested tensor",
        ),
        (lambda: CSR.to_torch(VALUES[1:]), ValueError, r"shape \(30,\), got \(29,\)"),
        (lambda: CSR.to_torch(VALUES.to("meta")), ValueError, "on meta and the pattern on cpu"),
    ],
)  # fmt: skip
def test_what_makes_no_pattern_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
