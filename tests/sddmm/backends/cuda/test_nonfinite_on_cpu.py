"""NaN and infinities reach exactly the values whose own row or column holds them.

The GPU kernels' sources, run on the CPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import sddmm
from gemm_core.runtime.device import Device
from sddmm.backends.cuda.kernels.registry import SPECS
from sddmm.backends.cuda.spec import KernelSpec
from sddmm.sparse.pattern import SparsePattern
from sddmm.testing import H200, emulated_gpu, mismatches, random_pattern, tolerance
from tests.cases import cases
from tests.sddmm.backends.cuda.representatives import ONE_OF_EACH_SOURCE

pytestmark = pytest.mark.usefixtures("kernels_on_cpu")

FEW = replace(H200, sm_count=2)

# Which row or column of every EVERY holds which of these, and which is zeros.
EVERY = 13
SPECIAL = {0: torch.inf, 4: torch.nan, 9: -torch.inf}
ZEROS = 7


def surrounded_by_nan(x: Tensor, offset: int) -> Tensor:
    """x in the middle of NaN, its rows `offset` elements after multiples of 16 bytes."""
    rows, k = x.shape[-2:]
    pitch = -(-(k + offset) // 16) * 16 + 16
    field = torch.full((*x.shape[:-2], rows + 2, pitch), torch.nan, dtype=x.dtype)
    return field[..., 1:-1, offset : offset + k].copy_(x)


def operand(rows: int, k: int, dtype: torch.dtype, heads: int | None, offset: int) -> Tensor:
    """Normal numbers; in some rows one that is not finite, elsewhere than in the row before."""
    generator = torch.Generator().manual_seed(rows)
    lead = () if heads is None else (heads,)
    x = torch.randn(*lead, rows, k, generator=generator)
    x[..., ZEROS::EVERY, :] = 0
    for first, value in SPECIAL.items():
        for row in range(first, rows, EVERY):
            x[..., row, (37 * row) % k] = value
    return surrounded_by_nan(x.to(dtype), offset)


def check(
    kernel: str,
    pattern: SparsePattern,
    k: int,
    dtype: torch.dtype,
    precision: str,
    heads: int | None = None,
    offset: int = 0,
    device: Device = FEW,
) -> None:
    """Every value of such operands is right, and there are values of every kind."""
    a, b_t = (operand(rows, k, dtype, heads, offset) for rows in pattern.shape)
    truth = check_operands(kernel, pattern, a, b_t, precision, device=device)
    assert truth.isnan().any()
    assert truth.isinf().any()
    assert truth.isfinite().sum() > truth.numel() // 3


def check_operands(
    kernel: str,
    pattern: SparsePattern,
    a: Tensor,
    b_t: Tensor,
    precision: str,
    wanted: Tensor | slice = slice(None),
    device: Device = FEW,
) -> Tensor:
    """The wanted values are float64's within the bound, NaN and infinities included: returned."""
    k, dtype, heads = a.shape[-1], a.dtype, a.shape[0] if a.dim() == 3 else None
    out_dtype = torch.promote_types(dtype, torch.float32)
    with emulated_gpu(device):
        plan = sddmm.plan(
            pattern, k=k, dtype=dtype, heads=heads, out_dtype=out_dtype, precision=precision,
            kernel=kernel, backend="cuda",
        )  # fmt: skip
        out = plan.run(
            a, b_t.mT, out=torch.full(plan.problem.values_shape(), 777.0, dtype=out_dtype)
        )
    products = a.double()[..., pattern.row_ids.long(), :]
    products = products * b_t.double()[..., pattern.col_indices.long(), :]
    truth = products.sum(-1)
    bound = tolerance(dtype, k, precision=precision) * products.abs().sum(-1)
    wrong = mismatches(out, truth, bound)[..., wanted].nonzero()
    assert not len(wrong), f"{len(wrong)} wrong, first at {wrong[0].tolist()}"
    return truth


def short_rows() -> SparsePattern:
    """Rows of 0 to 60 nonzeros: groups of many rows, of two, and of one."""
    lengths = torch.arange(61).repeat(2) * (torch.arange(122) % 3 > 0)
    rows = torch.repeat_interleave(torch.arange(122), lengths)
    cols = torch.arange(len(rows)) * 11 % 67
    return SparsePattern.from_coo(rows, cols, (122, 67))


GATHERS = cases(
    [
        (name, dtype, k)
        for name in ("row_gather", "windows")
        for dtype in SPECS[name].dtypes
        for k in ((64, 300) if dtype == torch.float16 else (64,))
    ],
    here=[
        ("row_gather", torch.float16, 300),
        ("row_gather", torch.float64, 64),
        ("windows", torch.float16, 300),
        ("windows", torch.float32, 64),
    ],
    name=lambda case: f"{case[0]}-{str(case[1])[6:]}-{case[2]}",
)
TILES = cases(
    [spec for name, spec in SPECS.items() if name not in ("row_gather", "windows")],
    here=ONE_OF_EACH_SOURCE.values(),
    name=lambda spec: spec.name,
)


@pytest.mark.parametrize(("kernel", "dtype", "k"), GATHERS)
def test_gathers_of_rows_of_every_length(kernel: str, dtype: torch.dtype, k: int) -> None:
    check(kernel, short_rows(), k, dtype, "ieee")


@pytest.mark.parametrize("kernel", ["row_gather", "windows"])
def test_gathers_of_rows_that_start_anywhere(kernel: str) -> None:
    check(kernel, short_rows(), 24, torch.bfloat16, "ieee", heads=2, offset=1)


@pytest.mark.parametrize("spec", TILES)
def test_tiles_that_end_anywhere(spec: KernelSpec) -> None:
    """Tails of rows, of columns and of k in one tile of several; bfloat16 has a test below."""
    check(spec.name, random_pattern(67, 131, 700), 40, spec.dtypes[0], spec.precision)


@pytest.mark.parametrize("spec", [SPECS["tile_mma_64x64x32"], SPECS["tile_wmma_m16n16k16"]])
def test_tiles_of_rows_that_start_anywhere(spec: KernelSpec) -> None:
    pattern = random_pattern(30, 20, 200, layout="coo", shuffled=True)
    check(spec.name, pattern, 24, spec.dtypes[-1], "ieee", heads=2, offset=1)


def test_the_hybrid_of_tiles_and_a_gather() -> None:
    block = torch.cartesian_prod(torch.arange(128), torch.arange(128)).T
    rest = random_pattern(300, 400, 500, layout="coo")
    rows = torch.cat([block[0], rest.row_ids])
    cols = torch.cat([block[1], rest.col_indices])
    check("hybrid", SparsePattern.from_coo(rows, cols, (300, 400)), 64, torch.float16, "ieee")


def test_gathers_by_slices_of_k() -> None:
    """Sums of earlier slices are added to those of later ones."""
    small = replace(FEW, l2_bytes=1000)
    check("row_gather", short_rows(), 700, torch.float16, "ieee", device=small)


@pytest.mark.parametrize("name", [name for name in SPECS if "tf32" in name])
def test_the_largest_numbers_stay_finite_in_tf32(name: str) -> None:
    """Rounded up they would be infinite. An infinity beside large numbers is no NaN."""
    pattern = random_pattern(67, 131, 700)
    generator = torch.Generator().manual_seed(0)
    largest = 3.4025e38
    a = torch.full((67, 40), largest)
    a[::3] = torch.inf
    b_t = torch.rand(131, 40, generator=generator)
    for scale, rows in ((0.02, slice(None)), (1e6, slice(0, None, 3))):
        wanted = torch.zeros(67, dtype=torch.bool)
        wanted[rows] = True
        check_operands(
            name, pattern, a, scale * b_t, SPECS[name].precision, wanted[pattern.row_ids.long()]
        )
