"""row_starts, run on the CPU: where rows begin, and whether one is long."""

from __future__ import annotations

import pytest
import torch

from sddmm.backends.cuda.kernels.row_starts.host import starts_of_short_rows
from sddmm.testing import emulated_gpu
from tests.sddmm.memory import at_a_cliff


@pytest.mark.parametrize("nnz", [1, 255, 256, 257, 900])
@pytest.mark.parametrize("m", [1, 300, 5000])
def test_offsets_of_all_rows_with_and_without_nonzeros(m: int, nnz: int) -> None:
    rows = torch.randint(m, (nnz,), generator=torch.Generator().manual_seed(nnz)).sort().values
    with emulated_gpu():
        offsets = starts_of_short_rows(at_a_cliff(rows.int()), m, nnz, 0)
    assert offsets is not None
    assert torch.equal(offsets.long(), torch.searchsorted(rows, torch.arange(m + 1)))


@pytest.mark.parametrize("place", [0, 200, 399])
def test_a_long_row_is_found_wherever_it_is(place: int) -> None:
    with emulated_gpu():
        for length, is_short in ((63, True), (64, True), (65, False), (64, True)):
            extra = torch.full((length - 1,), place)
            rows = torch.cat([torch.arange(400), extra]).sort().values.int()
            offsets = starts_of_short_rows(at_a_cliff(rows), 400, 64, 0)
            assert (offsets is not None) == is_short


def test_rows_that_an_analysis_would_refuse_stay_within_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before any is known to be wrong, offsets of them are found, which nothing reads."""
    generator = torch.Generator().manual_seed(0)
    empty = torch.empty

    def empty_at_a_cliff(*shape: int, **kind: object) -> torch.Tensor:
        return at_a_cliff(empty(*shape, **kind))  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", empty_at_a_cliff)
    with emulated_gpu():
        for low, high in ((-(2**31), 2**31), (-5, 400), (300, 303)):
            rows = torch.randint(low, high, (700,), generator=generator).int()
            starts_of_short_rows(at_a_cliff(rows), 300, 64, 0)
            starts_of_short_rows(at_a_cliff(rows.sort().values), 300, 64, 0)
