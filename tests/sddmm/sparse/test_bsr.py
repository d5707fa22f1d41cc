"""Block patterns: their order of nonzeros, their conversions, and what they refuse."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sddmm
from sddmm import PatternModule, SparsePattern

CROW, COL = torch.tensor([0, 2, 2, 3]), torch.tensor([3, 0, 1])
BLOCKSIZE, SHAPE = (2, 3), (6, 12)
PATTERN = SparsePattern.from_bsr(CROW, COL, BLOCKSIZE, SHAPE)
POSITIONS = [
    (2 * block_row + row, 3 * block_column + column)
    for block_row, block_column in ((0, 3), (0, 0), (2, 1))
    for row in range(2)
    for column in range(3)
]
BLOCKS = torch.arange(18.0).view(3, 2, 3)


def positions(pattern: SparsePattern) -> list[tuple[int, int]]:
    return list(zip(pattern.row_ids.tolist(), pattern.col_ids.tolist(), strict=True))


def torch_bsr(blocks: Tensor = BLOCKS, crow: Tensor = CROW, col: Tensor = COL) -> Tensor:
    return torch.sparse_bsr_tensor(crow, col, blocks, SHAPE, check_invariants=False)


def test_nonzeros_are_ordered_block_by_block_and_row_by_row_within() -> None:
    assert PATTERN.nnz == 18
    assert positions(PATTERN) == POSITIONS
    assert repr(PATTERN) == "SparsePattern(6x12, nnz=18, bsr 2x3, torch.int64, cpu)"


@pytest.mark.parametrize("blocksize", [(1, 1), (6, 1), (1, 12), (3, 4), (6, 12)])
def test_every_blocksize_that_divides_the_shape(blocksize: tuple[int, int]) -> None:
    down, across = SHAPE[0] // blocksize[0], SHAPE[1] // blocksize[1]
    crow = torch.arange(0, down * across + 1, across, dtype=torch.int32)
    col = torch.arange(across, dtype=torch.int32).repeat(down)
    pattern = SparsePattern.from_bsr(crow, col, blocksize, SHAPE)
    dense = torch.zeros(SHAPE)
    dense[pattern.row_ids, pattern.col_ids] += 1
    assert bool((dense == 1).all())


def test_numpy_indices_and_patterns_without_blocks() -> None:
    assert SparsePattern.from_bsr(CROW.numpy(), COL.numpy(), BLOCKSIZE, SHAPE) == PATTERN
    empty = SparsePattern.from_bsr(np.zeros(4, int), np.zeros(0, int), (2, 3), (6, 0))
    assert (empty.nnz, empty.row_ids.numel(), empty.col_ids.numel()) == (0, 0, 0)


def test_indices_of_nonzeros_do_not_overflow_where_those_of_blocks_are_narrow() -> None:
    crow, last = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([2**22], dtype=torch.int32)
    pattern = SparsePattern.from_bsr(crow, last, (2, 1024), (2, 2**32 + 1024))
    assert pattern.col_ids.tolist() == 2 * list(range(2**32, 2**32 + 1024))
    assert pattern.by_row.indices.tolist() == pattern.col_ids.tolist()
    pattern.T.check()
    widest = SparsePattern.from_bsr(crow, last - 1, (2, 512), (2, 2**31))
    assert (int(widest.col_ids.max()), widest.col_ids.dtype) == (2**31 - 1, torch.int32)


def test_conversions_keep_the_nonzeros() -> None:
    assert positions(PATTERN.to_coo()) == POSITIONS
    assert positions(PATTERN.T) == [(column, row) for row, column in POSITIONS]
    by_row = sorted(POSITIONS, key=lambda position: position[0])  # blocks keep their order
    assert positions(PATTERN.to_csr()) == by_row
    perm = PATTERN.by_row.perm
    assert perm is not None
    assert [POSITIONS[i] for i in perm.tolist()] == by_row


def test_a_torch_tensor_and_back() -> None:
    S = PATTERN.to_torch(BLOCKS.view(-1))
    assert S.layout == torch.sparse_bsr
    assert torch.equal(S.to_dense(), torch_bsr().to_dense())
    assert torch.equal(S.values(), BLOCKS)
    assert SparsePattern.from_torch(S) == PATTERN
    dense = torch.zeros(SHAPE)
    dense[PATTERN.row_ids, PATTERN.col_ids] = BLOCKS.view(-1)
    assert torch.equal(S.to_dense(), dense)


@pytest.mark.parametrize("col", [COL, torch.tensor([1, 1, 2])])
def test_a_torch_tensor_is_differentiable_in_the_values(col: Tensor) -> None:
    """Whatever the order of the blocks, and with duplicates: torch's own is wrong there."""
    pattern = SparsePattern.from_bsr(CROW, col, BLOCKSIZE, SHAPE)
    values = torch.randn(18, requires_grad=True)
    (pattern.to_torch(values).values() * BLOCKS).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, BLOCKS.view(-1))


def test_gradients_of_a_dense_use_reach_the_values() -> None:
    values, weights = torch.randn(18, requires_grad=True), torch.randn(SHAPE)
    (PATTERN.to_torch(values).to_dense() * weights).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, weights[PATTERN.row_ids, PATTERN.col_ids])


def test_equality_hashes_copies_and_pickles() -> None:
    for other in (copy.copy(PATTERN), copy.deepcopy(PATTERN), pickle.loads(pickle.dumps(PATTERN))):
        assert other == PATTERN
        assert hash(other) == hash(PATTERN)
        assert other.fingerprint == PATTERN.fingerprint
        assert positions(other) == POSITIONS
    flat = SparsePattern.from_bsr(CROW, COL, (2, 2), (6, 8))
    csr = SparsePattern.from_csr(CROW, COL, (3, 4))
    assert PATTERN not in (flat, csr, PATTERN.to_coo(), PATTERN.to_csr())
    assert len({x.fingerprint for x in (PATTERN, flat, csr, PATTERN.to_coo())}) == 4


def test_a_module_holds_the_indices_of_the_blocks() -> None:
    module = PatternModule(PATTERN)
    assert module.pattern is PATTERN
    other = PatternModule(SparsePattern.from_bsr(CROW, torch.zeros_like(COL), BLOCKSIZE, SHAPE))
    other.load_state_dict(module.state_dict())
    assert other.pattern == PATTERN
    moved = copy.deepcopy(module).to("meta").to_empty(device="cpu")
    moved.load_state_dict(module.state_dict())
    assert moved.pattern == PATTERN


def test_a_change_in_place_is_noticed() -> None:
    crow, col = CROW.clone(), COL.clone()
    pattern = SparsePattern.from_bsr(crow, col, BLOCKSIZE, SHAPE)
    a, b = torch.randn(6, 5), torch.randn(5, 12)
    before = sddmm.sddmm(pattern, a, b)
    torch.testing.assert_close(before, (a @ b)[pattern.row_ids, pattern.col_ids])
    col[2] = 2
    after = sddmm.sddmm(pattern, a, b)
    assert torch.equal(after[:12], before[:12])
    torch.testing.assert_close(after[12:], (a @ b)[4:, 6:9].reshape(-1))
    crow.copy_(torch.tensor([0, 1, 1, 3]))
    assert pattern.row_ids[6] == 4
    col[0] = 4
    with pytest.raises(ValueError, match=r"col_indices\[0\] is 4; valid are 0..3, as S has shape"):
        sddmm.sddmm(pattern, a, b)


def test_a_change_of_a_torch_tensor_is_noticed() -> None:
    col = COL.clone()
    S = torch_bsr(col=col)
    a, b = torch.randn(6, 5), torch.randn(5, 12)
    for changed in (COL, torch.tensor([1, 2, 0])):
        col.copy_(changed)
        result = sddmm.sddmm(S, a, b)
        torch.testing.assert_close(result.to_dense(), S.to_dense() * (a @ b))


def bsr(
    crow: Any = CROW, col: Any = COL, blocksize: Any = BLOCKSIZE, shape: Any = SHAPE
) -> SparsePattern:
    pattern = SparsePattern.from_bsr(crow, col, blocksize, shape)
    pattern.check()
    return pattern


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"blocksize": (4, 3)}, ValueError, "blocksize 4x3 does not divide the shape 6x12; pad"),
        ({"blocksize": (2, 5)}, ValueError, "blocksize 2x5 does not divide the shape 6x12; pad"),
        ({"blocksize": (0, 3)}, ValueError, r"blocksize must be two sizes >= 1, got \(0, 3\)"),
        ({"blocksize": (2, -3)}, ValueError, r"blocksize must be two sizes >= 1, got \(2, -3\)"),
        ({"blocksize": (True, 3)}, ValueError, r"two sizes >= 1, got \(True, 3\)"),
        ({"blocksize": (2.0, 3)}, TypeError, r"blocksize must be two integers .*got \(2.0, 3\)"),
        ({"blocksize": 2}, ValueError, r"blocksize must be two sizes \(bm, bn\), got 2"),
        ({"blocksize": (2, 3, 1)}, ValueError, r"two sizes \(bm, bn\), got \(2, 3, 1\)"),
        ({"crow": CROW[:3]}, ValueError, r"must have m / bm \+ 1 = 4 entries .*\(2, 3\), got 3"),
        ({"crow": CROW.view(2, 2)}, ValueError, r"crow_indices must be 1-D, got shape \(2, 2\)"),
        ({"crow": CROW.int()}, TypeError, "crow_indices is torch.int32 and col_indices torch.int6"),
        ({"crow": CROW.to("meta")}, ValueError, "crow_indices is on meta and col_indices on cpu"),
        ({"col": COL.float()}, TypeError, "col_indices must be int32 or int64, got torch.float32"),
        ({"col": [[0], [1, 2]]}, TypeError, "col_indices must be a 1-D torch tensor or numpy arr"),
        ({"col": COL + 1}, ValueError, r"\[0\] is 4; valid are 0..3, as .* 6x12 in blocks of 2x3"),
        ({"col": COL - 1}, ValueError, r"col_indices\[1\] is -1; valid are 0..3"),
        ({"col": COL[:2]}, ValueError, "must end with the number of blocks = 2, got 3"),
        ({"crow": CROW + 1}, ValueError, "crow_indices must start with 0, got 1"),
        ({"crow": CROW[[0, 2, 0, 3]]}, ValueError, "crow_indices must never fall, got 2 then 0"),
        ({"shape": (6,)}, ValueError, r"shape must be two sizes \(m, n\)"),
    ],
)  # fmt: skip
def test_what_makes_no_block_pattern_is_refused(
    arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bsr(**arguments)


def test_only_block_patterns_have_blocks() -> None:
    assert PATTERN.blocks == SparsePattern.from_csr(CROW, COL, (3, 4))
    with pytest.raises(ValueError, match="has no blocks; make one with SparsePattern"):
        PATTERN.to_coo().blocks  # noqa: B018


@pytest.mark.parametrize("values", [torch.zeros(17), torch.zeros(3, 2, 3)])
def test_values_of_another_shape_are_refused(values: Tensor) -> None:
    with pytest.raises(ValueError, match=r"values must be a tensor of shape \(18,\), got"):
        PATTERN.to_torch(values)
