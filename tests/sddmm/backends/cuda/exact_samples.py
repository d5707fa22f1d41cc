"""SDDMM of small integers by one kernel, run on the CPU, which is exact in any order."""

from __future__ import annotations

import torch

import sddmm
from gemm_core.runtime.device import Device
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, emulated_gpu
from tests.sddmm.memory import at_a_cliff


def check(
    kernel: str | None,
    pattern: SparsePattern,
    k: int,
    dtype: torch.dtype,
    *,
    heads: int | None = None,
    precision: str = "ieee",
    aligned: bool = True,
    scaled: bool = False,
    out_dtype: torch.dtype = torch.float32,
    device: Device = H200,
) -> tuple[sddmm.Plan, list[str]]:
    """Compare every value with the exact one; the plan and the kernels that it launched."""
    generator = torch.Generator().manual_seed(k)
    values = torch.randint(1, 4, (pattern.nnz,), generator=generator).to(dtype) if scaled else None
    per_16_bytes = 16 // dtype.itemsize
    pitch = -(-k // per_16_bytes) * per_16_bytes + (0 if aligned else 1)

    def operand(rows: int) -> torch.Tensor:
        lead = () if heads is None else (heads,)
        whole = torch.randint(-2, 3, (*lead, rows, pitch), generator=generator).to(dtype)
        return at_a_cliff(whole[..., :k])

    a, b_t = operand(pattern.shape[0]), operand(pattern.shape[1])
    with emulated_gpu(device) as launches:
        plan = sddmm.plan(
            pattern if values is None else pattern.to_torch(values), k=k, dtype=dtype,
            heads=heads, out_dtype=out_dtype, precision=precision, kernel=kernel, backend="cuda",
            alpha=2.0 if scaled else 1.0,
        )  # fmt: skip
        got = plan.run(a, b_t.mT)
    left = a.double()[..., pattern.row_ids.long(), :]
    right = b_t.double()[..., pattern.col_ids.long(), :]
    expected = (left * right).sum(-1)
    if values is not None:
        expected = 2 * expected * values.double()
    wrong = (got.double() != expected).nonzero()
    assert not len(wrong), f"{len(wrong)} of {got.numel()} wrong, first at {wrong[0].tolist()}"
    return plan, launches
