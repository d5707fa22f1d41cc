"""The ladder: one line per named variant."""

from __future__ import annotations

import torch

from gemm_core.spec import KernelSpec

HALF = (torch.float16, torch.bfloat16)
FLOAT = (torch.float32,)


def _naive(name: str, dtypes: tuple[torch.dtype, ...]) -> KernelSpec:
    return KernelSpec(
        name=name, source="naive_gemm.cu", tile=(32, 32, 1), threads=1024, dtypes=dtypes, rate=3
    )


def _simt(
    name: str,
    tile: tuple[int, int, int],
    thread: tuple[int, int],
    rate: float,
    *,
    spread: bool = True,
    buffers: int = 2,
    pad: int = 0,
) -> KernelSpec:
    """CUDA cores, in float arithmetic whatever the operands. thread: outputs of a thread."""
    warps = (tile[0] // (4 * thread[0]), tile[1] // (8 * thread[1]))
    return KernelSpec(
        name=name,
        source="simt_gemm.cu",
        tile=tile,
        threads=32 * warps[0] * warps[1],
        dtypes=FLOAT,
        shared_bytes=buffers * tile[2] * (tile[0] + tile[1] + 2 * pad) * 4,
        raster_group=8,
        rate=rate,
        defines={
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "THREAD_M": thread[0],
            "THREAD_N": thread[1],
            "BUFFERS": buffers,
            "PAD": pad,
            "SPREAD": "true" if spread else "false",
        },
    )


def _mma(
    name: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    rate: float,
    *,
    precision: str = "ieee",
) -> KernelSpec:
    """mma.sync with ldmatrix. float32 operands (tf32, tf32x3) need B as (n, k) rows."""
    block_m, block_n, block_k = tile
    itemsize = 2 if precision == "ieee" else 4
    return KernelSpec(
        name=name,
        source="mma_gemm.cu",
        tile=tile,
        threads=32 * warps[0] * warps[1],
        dtypes=HALF if precision == "ieee" else FLOAT,
        precision=precision,
        b_rows="kn" if precision == "ieee" else "n",
        shared_bytes=stages * (block_m + block_n) * block_k * itemsize,
        raster_group=8,
        rate=rate,
        defines={
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "STAGES": stages,
            "SPLIT_TF32": "true" if precision == "tf32x3" else "false",
        },
    )


KERNELS: dict[str, KernelSpec] = {
    spec.name: spec
    for spec in (
        _naive("sgemm_naive", FLOAT),
        _naive("hgemm_naive", HALF),
        _simt("sgemm_t8x8_sliced_k", (128, 128, 8), (8, 8), 36, spread=False, buffers=1),
        _simt("sgemm_t8x8_bcf", (128, 128, 8), (8, 8), 40, buffers=1),
        _simt("sgemm_t8x8_bcf_offset", (128, 128, 8), (8, 8), 40, buffers=1, pad=4),
        _simt("sgemm_t8x8_bcf_dbuf", (128, 128, 8), (8, 8), 39),
        _simt("sgemm_t8x8_bcf_dbuf_offset", (128, 128, 8), (8, 8), 40, pad=4),
        _simt("sgemm_t8x8_k16_dbuf_offset", (128, 128, 16), (8, 8), 36, pad=4),
        _simt("sgemm_t8x4_k16_dbuf_offset", (64, 64, 16), (8, 4), 40, pad=4),
        _simt("sgemm_t8x16_k16_dbuf", (128, 256, 16), (8, 16), 42),
        _mma("mma_64x64x32_stage3", (64, 64, 32), (2, 2), 3, 245),
        _mma("mma_128x128x32_stage4", (128, 128, 32), (2, 2), 4, 345),
        _mma("mma_128x128x64_stage3", (128, 128, 64), (2, 2), 3, 360),
        _mma("mma_128x256x32_stage4", (128, 256, 32), (2, 4), 4, 375),
        _mma("mma_128x256x64_stage3", (128, 256, 64), (2, 4), 3, 380),
        _mma("mma_256x128x64_stage3", (256, 128, 64), (4, 2), 3, 385),
        _mma("mma_tf32_128x128x32_stage3", (128, 128, 32), (2, 4), 3, 145, precision="tf32"),
        _mma("mma_tf32_128x256x32_stage3", (128, 256, 32), (2, 4), 3, 178, precision="tf32"),
        _mma("mma_tf32x3_128x64x32_stage3", (128, 64, 32), (4, 2), 3, 44, precision="tf32x3"),
        _mma("mma_tf32x3_64x128x32_stage3", (64, 128, 32), (2, 4), 3, 44, precision="tf32x3"),
    )
}
