"""spmm_shares, run on the CPU: the rows that shares of one warp cut, and their pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gemm_core.arithmetic import ceil_div
from sddmm.backends.cuda.kernels.spmm_shares.host import (
    CUT_ROW_BYTES,
    SHARE_BYTES,
    SLOT_BYTES,
    RowShares,
    share_rows,
)
from sddmm.backends.cuda.layouts import Nonzeros
from sddmm.backends.cuda.pinned_results import PinnedResults
from sddmm.testing import H200, emulated_gpu
from tests.sddmm.memory import at_a_cliff


def with_a_hub(seed: int) -> tuple[Tensor, int]:
    """Sorted row ids, many of one row; and the number of rows, some of which have no nonzeros."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int) -> int:
        return int(torch.randint(high, (1,), generator=generator))

    m, nnz = 1 + draw(60), draw(900)
    of_hub = torch.full((draw(nnz + 1),), draw(m))
    others = torch.randint(m, (nnz - len(of_hub),), generator=generator)
    return torch.cat([of_hub, others]).sort().values.int(), m


def lists_of(shares: RowShares) -> tuple[list[list[int]], dict[int, tuple[int, int]]]:
    """The two slots of each share; and of each cut row its first piece and their number."""
    number = shares.blocks
    at = number * SHARE_BYTES
    slots = shares.memory[at : at + number * SLOT_BYTES].view(torch.int32).view(number, 2)
    at += number * SLOT_BYTES
    listed = shares.memory[at : at + shares.cuts * CUT_ROW_BYTES].view(torch.int32).view(-1, 3)
    return slots.tolist(), {row: (first, count) for row, first, count in listed.tolist()}


@pytest.mark.parametrize("share", [4, 31, 85])
def test_every_row_in_several_shares_has_a_piece_in_each(share: int) -> None:
    """Shares end at the end of a row if one is near, so that few rows are cut."""
    with emulated_gpu():
        for seed in range(15):
            rows, m = with_a_hub(seed)
            nonzeros = Nonzeros(rows, torch.zeros_like(rows), None)
            shares = share_rows(nonzeros, m, 1, share, H200, lists_cut_rows=True)
            slots, listed = lists_of(shares)
            begins = [*shares.begins(list(range(shares.blocks))), len(rows)]
            sharing: dict[int, list[int]] = {}
            for i in range(shares.blocks):
                for row in set(rows[begins[i] : begins[i + 1]].tolist()):
                    sharing.setdefault(row, []).append(i)
            cut = {row: own for row, own in sharing.items() if len(own) > 1}
            assert set(listed) == set(cut)
            pieces: list[int] = []
            for row, own in cut.items():
                first, count = listed[row]
                assert count == len(own)
                # In the share where the row begins it is the second slot, later the first.
                found = [slots[i][number == 0] for number, i in enumerate(own)]
                assert found == list(range(first, first + count))
                pieces += found
            assert sorted(pieces) == list(range(shares.pieces))


def test_blocks_of_several_warps_only_tell_whether_any_begins_within_a_row() -> None:
    with emulated_gpu():
        for rows, has_cuts in ((torch.zeros(500), True), (torch.arange(500), False)):
            nonzeros = Nonzeros(rows.int(), torch.zeros(500, dtype=torch.int32), None)
            assert bool(share_rows(nonzeros, 500, 4, 20, H200).cuts) == has_cuts


@pytest.mark.parametrize("of_blocks", [1, 4])
@pytest.mark.parametrize("kind", ["falling", "negative", "large", "any"])
def test_rows_that_an_analysis_would_refuse_are_shared_within_memory(
    kind: str, of_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is launched before the host has the report of the analysis."""
    empty = torch.empty

    def aligned_at_a_cliff(size: int, **options: Any) -> Tensor:
        return at_a_cliff(empty(ceil_div(size, 16) * 16, **options))

    monkeypatch.setattr(torch, "empty", aligned_at_a_cliff)
    generator = torch.Generator().manual_seed(0)
    extreme = torch.tensor([-(2**31), -1, 2**31 - 1, 40])
    rows = {
        "falling": torch.arange(300).flip(0) // 100,
        "negative": torch.full((300,), -(2**31)),
        "large": torch.full((300,), 2**31 - 1),
        "any": extreme[torch.randint(4, (300,), generator=generator)],
    }[kind]
    rows = at_a_cliff(rows.int())
    with emulated_gpu():
        nonzeros = Nonzeros(rows, torch.zeros_like(rows), None)
        for share in (4, 31, 85):
            share_rows(nonzeros, 50, of_blocks, share, H200, lists_cut_rows=of_blocks == 1)
        right = share_rows(Nonzeros(rows * 0, rows * 0, None), 50, 1, 20, H200, True)
    assert right.cuts == 1


def test_a_launch_whose_report_an_interrupt_left_is_not_taken_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(self: PinnedResults) -> None:
        raise KeyboardInterrupt

    rows = torch.zeros(500, dtype=torch.int32)
    nonzeros = Nonzeros(rows, rows, None)
    with emulated_gpu():
        right = share_rows(nonzeros, 1, 1, 20, H200, lists_cut_rows=True)
        with monkeypatch.context() as patch:
            patch.setattr(PinnedResults, "swap_state", interrupt)  # after the launch has counted
            with pytest.raises(KeyboardInterrupt):
                share_rows(nonzeros, 1, 1, 20, H200, lists_cut_rows=True)
        again = share_rows(nonzeros, 1, 1, 20, H200, lists_cut_rows=True)
    assert right.cuts == 1
    assert (again.cuts, again.pieces) == (right.cuts, right.pieces)


@pytest.mark.parametrize("length", [100, 1000])
def test_shares_of_warps_end_where_a_row_ends_nearby(length: int) -> None:
    """They are whole, in order, and about equal."""
    share, warps = 160, 4
    rows = (torch.arange(6000) // length).int()
    m = int(rows[-1]) + 1
    nonzeros = Nonzeros(rows, torch.zeros_like(rows), None)
    with emulated_gpu():
        shares = share_rows(nonzeros, m, warps, share, H200, aligns_warps=True)
    ends = shares.memory.view(torch.int64).view(-1, SHARE_BYTES // 8)[:, :2].tolist()
    assert [ends[0][0], *(end for _, end in ends)] == [*(begin for begin, _ in ends), len(rows)]
    assert all(share // 4 <= end - begin <= 2 * share for begin, end in ends[:-1])
    begins = [begin for begin, _ in ends]
    from_row_end = [min(begin % length, -begin % length) for begin in begins]
    assert all(distance == 0 or distance > share // 8 for distance in from_row_end)
    assert sum(distance == 0 for distance in from_row_end) >= min(m, len(begins) // 3)
