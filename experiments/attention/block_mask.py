"""FlexAttention's block masks, made from S, and the rules by which its kernels mask within blocks.

A rule is what a user of FlexAttention writes for the class of masks: arithmetic on the indices, or
a look-up in a small table. The lists of blocks come from counting S's nonzeros in each block, so a
full block is computed without the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from experiments.attention.case import Case
from gemm_core.arithmetic import ceil_div

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""mask_mod(batch, head, row, column) -> whether the position is stored."""

BLOCK, SMALL_BLOCK = 128, 64

# The fields of generators and the rule of each.
_Make = Callable[[Case, Mapping[str, Any]], Rule]


def _causal(case: Case, fields: Mapping[str, Any]) -> Rule:
    offset = case.n - case.m
    return lambda batch, head, row, column: column <= row + offset


def _window(case: Case, fields: Mapping[str, Any]) -> Rule:
    width, kept = fields["window"], fields["global_tokens"]

    def rule(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        is_near = (row - column <= width) & (column - row <= width)
        return is_near | (row < kept) | (column < kept)

    return rule


def _dilated(case: Case, fields: Mapping[str, Any]) -> Rule:
    step, reach = fields["dilation"], fields["window"] * fields["dilation"]

    def rule(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        is_near = (row - column <= reach) & (column - row <= reach)
        return is_near & (row % step == column % step)

    return rule


def _packed(case: Case, fields: Mapping[str, Any]) -> Rule:
    view = case.pattern.by_row
    first = view.indices[view.indptr[:-1].long()].to(torch.int32)  # the begin of a row's sequence
    return lambda batch, head, row, column: (column >= first[row]) & (column <= row)


def _blocks(case: Case, fields: Mapping[str, Any]) -> Rule:
    side = fields["block"]
    is_stored = counts(case, side) > 0
    return lambda batch, head, row, column: is_stored[row // side, column // side]


_RULES: dict[str, _Make] = {
    "Causal": _causal,
    "SlidingWindow": _window,
    "DilatedWindow": _dilated,
    "PackedCausal": _packed,
    "RandomBlocks": _blocks,
}


def refuses(case: Case) -> str | None:
    """None where the case's pattern is a mask that a rule describes."""
    source = case.definition["source"]
    if source not in _RULES:
        return f"the pattern is no mask of tiles: {source} is none of {', '.join(_RULES)}"
    return None


def rule_of(case: Case) -> Rule:
    return _RULES[case.definition["source"]](case, case.definition)


def block_side(case: Case) -> int:
    """Rows and columns of a block: those of FlexAttention's kernels, or the mask's if smaller.

    The kernels of its backward, of torch 2.11, divide 128 only.
    """
    side = case.definition.get("block", BLOCK)
    is_small = side % BLOCK and side % SMALL_BLOCK == 0 and not case.backward
    return SMALL_BLOCK if is_small else BLOCK


def block_mask(case: Case) -> BlockMask:
    """The lists of blocks that are full, and of those that are masked by the rule."""
    side = block_side(case)
    number = counts(case, side)
    height, width = (
        torch.full((blocks,), side, device=number.device).index_fill_(
            0, torch.tensor([blocks - 1], device=number.device), size - (blocks - 1) * side
        )
        for blocks, size in zip(number.shape, (case.m, case.n), strict=True)
    )
    is_full = number == height[:, None] * width
    partial, full = _lists((number > 0) & ~is_full), _lists(is_full)
    return BlockMask.from_kv_blocks(
        *partial, *full, BLOCK_SIZE=side, mask_mod=rule_of(case), seq_lengths=(case.m, case.n)
    )


def counts(case: Case, side: int) -> Tensor:
    """The nonzeros of each block, (rows of blocks, columns of blocks)."""
    down, across = ceil_div(case.m, side), ceil_div(case.n, side)
    rows, cols = case.pattern.row_ids.long(), case.pattern.col_indices.long()
    blocks = rows // side * across + cols // side
    return torch.bincount(blocks, minlength=down * across).view(down, across)


def _lists(is_listed: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row of blocks are listed, (1, 1, down), and their columns, first of
    all columns in (1, 1, down, across)."""
    columns = torch.argsort(is_listed.int(), dim=-1, descending=True, stable=True)
    number = is_listed.sum(-1)
    return number.int()[None, None].contiguous(), columns.int()[None, None].contiguous()
