"""One small case per SDDMM kernel, and of what plans are made of: what `make sanitize` runs."""

from __future__ import annotations

import pytest
import torch

import sddmm
from gemm_core.runtime.device import device
from sddmm.backends.cuda.analysis import ROWS, Wanted, begin
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.testing import assert_close, random_pattern

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in KERNELS.items()])
def test_a_small_ragged_case(spec: KernelSpec) -> None:
    """Unsorted COO, so that sorting and places are part of it."""
    pattern = random_pattern(150, 290, 900, layout="coo", shuffled=True, device="cuda")
    dtype = spec.dtypes[0]
    a = torch.randn(150, 104, device="cuda").to(dtype)
    b = torch.randn(290, 104, device="cuda").to(dtype).mT
    for out_dtype in {dtype, torch.float32}:
        plan = sddmm.plan(
            pattern, k=104, dtype=dtype, out_dtype=out_dtype, precision=spec.precision,
            kernel=spec.name,
        )  # fmt: skip
        assert_close(plan.run(a, b), pattern, a, b, precision=spec.precision)


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_the_analysis_of_a_pattern(layout: str, index_dtype: torch.dtype) -> None:
    """Rows, counts of tiles, and where the nonzeros of all tiles begin, by several blocks."""
    pattern = random_pattern(150, 290, 9000, layout=layout, device="cuda", index_dtype=index_dtype)
    for wanted in (ROWS, Wanted((64, 64), least=100), Wanted((64, 64), starts=True)):
        found = begin(pattern, device(0), wanted).finish()
        assert found.ascends
        if found.rows is not None:
            assert torch.equal(found.rows.long(), pattern.row_ids.long())
        if found.counts is not None:
            assert int(found.counts.sum()) == 9000
        if found.starts is not None:
            starts = found.starts.starts.view(-1, found.starts.by_row)
            assert torch.equal(starts[:150, 0].long(), pattern.by_row.indptr[:-1].long())
