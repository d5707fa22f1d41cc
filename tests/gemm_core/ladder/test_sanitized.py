"""One small ragged problem per family and way of copying: what `make sanitize` runs."""

from __future__ import annotations

import pytest
import torch

from gemm_core import gemm
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import KernelSpec

NAMES = (
    "sgemm_naive",
    "sgemm_t8x8_bcf",
    "sgemm_t8x8_bcf_dbuf_offset",
    "sgemm_t8x4_k16_dbuf_async",
    "hgemm_t4x4_f16x4_pack_bcf_offset",
    "hgemm_t8x8_k16_f16x8_pack_dbuf_async",
    "wmma_m16n16k16_naive",
    "wmma_mma4x2",
    "wmma_mma4x2_warp2x4_dbuf_offset",
    "wmma_mma4x2_warp2x4_stage3",
    "wmma_mma4x2_warp2x4x2_rbuf_async_offset",
    "mma_64x64x32_stage3",
    "mma_tf32_64x64x32_stage3",
    "mma_tf32x3_64x128x32_stage3",
    "wgmma_128x128x64_stage3",
    "wgmma_store_64x64x64_stage6",
    "wgmma_store_128x256x64_stage3",
    "wgmma_pingpong_128x128x64_stage5",
    "wgmma_split4_128x128x64_stage6",
    "wgmma_tf32_128x256x32_stage4",
    "wgmma_tf32x3_128x128x32_stage4",
)


def test_every_source_is_among_them() -> None:
    assert {KERNELS[name].source for name in NAMES} == {spec.source for spec in KERNELS.values()}


def stores_by_tma(spec: KernelSpec) -> bool:
    return spec.tma is not None and spec.tma.stores


def test_every_source_that_stores_by_tma_is_among_them() -> None:
    sources = {spec.source for spec in KERNELS.values() if stores_by_tma(spec)}
    assert sources == {KERNELS[name].source for name in NAMES if stores_by_tma(KERNELS[name])}


def check_exact(name: str, m: int, n: int, k: int) -> None:
    spec = KERNELS[name]
    dtype, b_layout = spec.dtypes[0], spec.b_layouts[-1]
    a = torch.randint(-2, 3, (m, k), device="cuda").to(dtype)
    b = torch.randint(-2, 3, (n, k) if b_layout == "nk" else (k, n), device="cuda").to(dtype)
    b = b.T if b_layout == "nk" else b
    options = {"precision": spec.precision, "accumulate": spec.accumulates[-1]}
    c = gemm(a, b, kernel=name, **options)
    assert torch.equal(c, (a.double() @ b.double()).to(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_small_ragged_product_is_exact(name: str) -> None:
    check_exact(name, *((160, 144, 112) if KERNELS[name].full_tiles_only else (150, 141, 104)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in NAMES if stores_by_tma(KERNELS[name])])
def test_a_small_ragged_product_is_exact_where_tma_stores_it(name: str) -> None:
    """As it does where rows of C end at multiples of 16 bytes; above, the threads store them."""
    check_exact(name, 150, 136, 104)
