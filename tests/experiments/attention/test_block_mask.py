"""FlexAttention's block masks hold exactly the nonzeros of S."""

from __future__ import annotations

import pytest
import torch

from experiments.attention import block_mask
from tests.experiments.attention.cases import MASKS, case_of


@pytest.mark.parametrize("name", MASKS)
def test_the_rule_and_the_lists_of_blocks_are_those_of_the_pattern(name: str) -> None:
    case = case_of(MASKS[name])
    dense = torch.zeros(case.m, case.n, dtype=torch.bool)
    dense[case.pattern.row_ids.long(), case.pattern.col_indices.long()] = True
    row, column = torch.meshgrid(torch.arange(case.m), torch.arange(case.n), indexing="ij")
    none = torch.tensor(0)
    assert torch.equal(block_mask.rule_of(case)(none, none, row, column), dense)
    side = block_mask.block_side(case)
    assert side == (64 if name == "small blocks" else 128)
    mask = block_mask.block_mask(case)
    assert mask.shape == (1, 1, case.m, case.n)
    partial = listed(mask.kv_num_blocks, mask.kv_indices)
    full = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    for i, rows in enumerate(dense.split(side)):
        for j, block in enumerate(rows.split(side, 1)):
            kind = "full" if block.all() else "partial" if block.any() else "empty"
            found = {(True, False): "full", (False, True): "partial", (False, False): "empty"}
            assert found[(i, j) in full, (i, j) in partial] == kind
    if "blocks" in name:
        assert not partial


def listed(number: torch.Tensor | None, columns: torch.Tensor | None) -> set[tuple[int, int]]:
    assert number is not None
    assert columns is not None
    rows = zip(number[0, 0].tolist(), columns[0, 0].tolist(), strict=True)
    return {(i, j) for i, (count, own) in enumerate(rows) for j in own[:count]}


def test_blocks_that_are_listed_for_the_backward_are_the_same_by_columns() -> None:
    mask = block_mask.block_mask(case_of(MASKS["packed"]))
    by_row = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    by_column = listed(mask.full_q_num_blocks, mask.full_q_indices)
    assert {(j, i) for i, j in by_row} == by_column
