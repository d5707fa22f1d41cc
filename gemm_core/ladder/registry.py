"""The ladder: one line per named variant. docs/ladder.md says what each adds and measured."""

from __future__ import annotations

import torch

from gemm_core.ladder.spec import LAYOUTS_OF_B, KernelSpec, Tma

HALF = (torch.float16, torch.bfloat16)
FLOAT = (torch.float32,)
FP16 = (torch.float16,)

_ONE_TILE, _STORED = Tma(), Tma(stores=True)
_CLUSTER = Tma(cluster=2, is_persistent=True)
_CLUSTER_STORED = Tma(cluster=2, is_persistent=True, stores=True)
_PLAIN, _ROLES = "wgmma_gemm.cu", "wgmma_roles_gemm.cu"
_PINGPONG, _SPLIT_K = "wgmma_pingpong_gemm.cu", "wgmma_split_k_gemm.cu"


def _naive(
    name: str, dtypes: tuple[torch.dtype, ...], accumulates: tuple[str, ...] = ("fp32",)
) -> KernelSpec:
    return KernelSpec(
        name=name,
        source="naive_gemm.cu",
        tile=(32, 32, 1),
        threads=1024,
        dtypes=dtypes,
        accumulates=accumulates,
        h200_tflops=5,
    )


def _simt(
    name: str,
    tile: tuple[int, int, int],
    thread: tuple[int, int],
    h200_tflops: float,
    *,
    vector: int = 4,
    spread: bool = True,
    buffers: int = 2,
    pad: int = 0,
    asynchronous: bool = False,
    min_blocks: int = 1,
    dtypes: tuple[torch.dtype, ...] = FLOAT,
) -> KernelSpec:
    """CUDA cores; halves are multiplied and summed in pairs.

    thread: rows and columns of outputs that a thread computes. spread: they are groups of four,
    interleaved with other threads' groups, so that shared memory is read without bank conflicts.
    """
    warps = (tile[0] // (4 * thread[0]), tile[1] // (8 * thread[1]))
    return KernelSpec(
        name=name,
        source="simt_gemm.cu",
        tile=tile,
        threads=32 * warps[0] * warps[1],
        dtypes=dtypes,
        accumulates=("fp32",) if dtypes == FLOAT else ("fp16",),
        shared_bytes=buffers * tile[2] * (tile[0] + tile[1] + 2 * pad) * dtypes[0].itemsize,
        min_blocks=min_blocks,
        raster_group=8,
        h200_tflops=h200_tflops,
        defines={
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "THREAD_M": thread[0],
            "THREAD_N": thread[1],
            "BUFFERS": buffers,
            "VECTOR": vector,
            "ASYNC": asynchronous,
            "PAD": pad,
            "SPREAD": spread,
        },
    )


def _half2(
    name: str,
    tile: tuple[int, int, int],
    thread: tuple[int, int],
    h200_tflops: float,
    *,
    vector: int,
    spread: bool = True,
    buffers: int = 1,
    pad: int = 0,
    asynchronous: bool = False,
) -> KernelSpec:
    """CUDA cores on pairs of halves. vector: the number of halves of one global memory access."""
    return _simt(
        name, tile, thread, h200_tflops, vector=vector, spread=spread, buffers=buffers, pad=pad,
        asynchronous=asynchronous, dtypes=FP16,
    )  # fmt: skip


def _wmma(
    name: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    h200_tflops: float,
    *,
    fragment: tuple[int, int] = (16, 16),
    stages: int = 1,
    asynchronous: bool = False,
    pad: int = 0,
    prefetch_fragments: bool = False,
    block_swizzle: bool = False,
    accumulates: tuple[str, ...] = ("fp32", "fp16"),
    b_layouts: tuple[str, ...] = LAYOUTS_OF_B,
) -> KernelSpec:
    """Tensor cores through WMMA instructions.

    block_swizzle: blocks that run together share rows of A and columns of B in L2.
    """
    block_m, block_n, block_k = tile
    bytes_n_rows = (block_m + block_n) * (block_k + pad)
    bytes_k_rows = block_m * (block_k + pad) + block_k * (block_n + pad)
    return KernelSpec(
        name=name,
        source="wmma_gemm.cu",
        tile=tile,
        threads=32 * warps[0] * warps[1],
        dtypes=FP16,
        accumulates=accumulates,
        b_layouts=b_layouts,
        uses_32bit_offsets=asynchronous,
        shared_bytes=stages * max(bytes_n_rows, bytes_k_rows) * 2,
        raster_group=8 if block_swizzle else 1,
        h200_tflops=h200_tflops,
        defines={
            "FRAGMENT_M": fragment[0],
            "FRAGMENT_N": fragment[1],
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "STAGES": stages,
            "ASYNC": asynchronous,
            "PAD": pad,
            "PREFETCH_FRAGMENTS": prefetch_fragments,
        },
    )


def _mma(
    name: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    h200_tflops: float,
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
        b_layouts=LAYOUTS_OF_B if precision == "ieee" else ("nk",),
        uses_32bit_offsets=True,
        shared_bytes=stages * (block_m + block_n) * block_k * itemsize,
        raster_group=16,
        h200_tflops=h200_tflops,
        defines={
            "WARPS_M": warps[0],
            "WARPS_N": warps[1],
            "STAGES": stages,
            "SPLIT_TF32": precision == "tf32x3",
        },
    )


def _wgmma(
    name: str,
    source: str,
    tile: tuple[int, int, int],
    stages: int,
    h200_tflops: float | None,
    tma: Tma = _ONE_TILE,
    *,
    threads: int = 384,
    min_blocks: int = 1,
    raster_group: int = 1,
    precision: str = "ieee",
    pending: int | None = None,
) -> KernelSpec:
    """wgmma, whose operands TMA loads. float32 operands (tf32) need B as (n, k) rows.

    pending: without roles, the stages whose products may run while the next stage is loaded.
    """
    block_m, block_n, _ = tile
    stored_rows = 2 * block_m if source == _PINGPONG else block_m
    # Without roles, stored tiles take the place of the stages.
    stored_bytes = stored_rows * block_n * 2 if tma.stores and source != _PLAIN else 0
    return KernelSpec(
        name=name,
        source=source,
        tile=tile,
        threads=threads,
        dtypes=HALF if precision == "ieee" else FLOAT,
        precision=precision,
        b_layouts=LAYOUTS_OF_B if precision == "ieee" else ("nk",),
        min_blocks=min_blocks,
        # The stages with 128 bytes of k in a row and two barriers each, and the stored tiles of C.
        shared_bytes=stages * ((block_m + block_n) * 128 + 16) + stored_bytes,
        min_capability=(9, 0),
        max_capability=(9, 0),
        raster_group=raster_group,
        tma=tma,
        h200_tflops=h200_tflops,
        defines={"STAGES": stages} | ({} if pending is None else {"PENDING": pending}),
    )


_SGEMM = (
    _naive("sgemm_naive", FLOAT),
    _simt("sgemm_sliced_k", (32, 32, 32), (1, 1), 6.8, spread=False, buffers=1),
    _simt("sgemm_t8x8_sliced_k", (128, 128, 8), (8, 8), 36, spread=False, buffers=1),
    _simt("sgemm_t8x8_bcf", (128, 128, 8), (8, 8), 38, buffers=1),
    _simt("sgemm_t8x8_bcf_offset", (128, 128, 8), (8, 8), 38, buffers=1, pad=4),
    _simt("sgemm_t8x8_bcf_dbuf", (128, 128, 8), (8, 8), 41),
    _simt("sgemm_t8x8_bcf_dbuf_offset", (128, 128, 8), (8, 8), 40, pad=4),
    _simt("sgemm_t8x8_k16_dbuf", (128, 128, 16), (8, 8), 38),
    _simt("sgemm_t8x8_k16_dbuf_offset", (128, 128, 16), (8, 8), 39, pad=4),
    _simt("sgemm_t8x8_k16_dbuf_async", (128, 128, 16), (8, 8), 42, pad=4, asynchronous=True,
          min_blocks=2),
    _simt("sgemm_t8x4_k16_dbuf", (64, 64, 16), (8, 4), 39, pad=4),
    _simt("sgemm_t8x4_k16_dbuf_async", (64, 64, 16), (8, 4), 43, pad=4, asynchronous=True),
    _simt("sgemm_t8x16_k16_dbuf", (128, 256, 16), (8, 16), 39),
    _simt("sgemm_t8x16_k16_dbuf_async", (128, 256, 16), (8, 16), 48, pad=4, asynchronous=True),
    _simt("sgemm_t8x16_k32_dbuf_async", (128, 256, 32), (8, 16), 50, pad=4, asynchronous=True),
)  # fmt: skip

_T8X8, _K8, _K16, _K32 = (8, 8), (128, 128, 8), (128, 128, 16), (128, 128, 32)

_HGEMM_CUDA_CORES = (
    _naive("hgemm_naive", HALF),
    _naive("hgemm_naive_half", FP16, ("fp16",)),
    _half2("hgemm_sliced_k", (32, 32, 32), (1, 2), 9.6, vector=2, spread=False),
    _half2("hgemm_t8x8_sliced_k_f16x4", _K8, _T8X8, 40, vector=2, spread=False),
    _half2("hgemm_t8x8_sliced_k_f16x4_pack", _K8, _T8X8, 46, vector=4, spread=False),
    _half2("hgemm_t8x8_f16x4_bcf", _K8, _T8X8, 40, vector=2),
    _half2("hgemm_t8x8_f16x4_pack_bcf", _K8, _T8X8, 45, vector=4),
    _half2("hgemm_t8x8_f16x4_pack_bcf_offset", _K8, _T8X8, 45, vector=4, pad=4),
    _half2("hgemm_t4x4_f16x4_pack_bcf", (64, 64, 8), (4, 4), 31, vector=4),
    _half2("hgemm_t4x4_f16x4_pack_bcf_offset", (64, 64, 8), (4, 4), 31, vector=4, pad=4),
    _half2("hgemm_t8x8_f16x8_pack_bcf", _K8, _T8X8, 50, vector=8),
    _half2("hgemm_t8x8_f16x8_pack_bcf_offset", _K8, _T8X8, 50, vector=8, pad=8),
    _half2("hgemm_t8x8_f16x8_pack_bcf_dbuf", _K8, _T8X8, 51, vector=8, buffers=2),
    _half2("hgemm_t8x8_k16_f16x8_pack_dbuf", _K16, _T8X8, 52, vector=8, buffers=2),
    _half2("hgemm_t8x8_k16_f16x8_pack_dbuf_offset", _K16, _T8X8, 52, vector=8, buffers=2, pad=8),
    _half2("hgemm_t8x8_k16_f16x8_pack_dbuf_async", _K16, _T8X8, 56, vector=8, buffers=2, pad=8,
           asynchronous=True),
    _half2("hgemm_t8x8_k32_f16x8_pack_dbuf", _K32, _T8X8, 35, vector=8, buffers=2, pad=8),
    _half2("hgemm_t8x8_k32_f16x8_pack_dbuf_async", _K32, _T8X8, 56, vector=8, buffers=2, pad=8,
           asynchronous=True),
    _half2("hgemm_t16x8_k32_f16x8_pack_dbuf", _K32, (16, 8), 44, vector=8, buffers=2, pad=8),
    _half2("hgemm_t16x8_k32_f16x8_pack_dbuf_async", _K32, (16, 8), 50, vector=8, buffers=2, pad=8,
           asynchronous=True),
)  # fmt: skip

_HGEMM_WMMA = (
    KernelSpec(
        name="wmma_m16n16k16_naive",
        source="wmma_naive_gemm.cu",
        tile=(16, 16, 16),
        threads=32,
        dtypes=FP16,
        accumulates=("fp32", "fp16"),
        full_tiles_only=True,
        h200_tflops=27,
    ),
    _wmma("wmma_mma4x2", (64, 32, 16), (4, 2), 30),
    _wmma("wmma_mma4x2_warp2x4", _K16, (4, 2), 76),
    _wmma("wmma_mma4x2_warp2x4_async", _K16, (4, 2), 80, asynchronous=True),
    _wmma("wmma_mma4x2_warp2x4_async_offset", _K16, (4, 2), 162, asynchronous=True, pad=8),
    _wmma("wmma_mma4x2_warp2x4x2", _K32, (4, 2), 48),
    _wmma("wmma_mma4x2_warp2x4x2_async", _K32, (4, 2), 62, asynchronous=True),
    _wmma("wmma_mma4x2_warp2x4x2_async_offset", _K32, (4, 2), 118, asynchronous=True, pad=8),
    _wmma("wmma_mma4x2_warp2x4x2_rbuf_async_offset", _K32, (4, 2), 148, stages=2,
          asynchronous=True, pad=8, prefetch_fragments=True),
    _wmma("wmma_mma4x2_warp2x4_dbuf", _K16, (4, 2), 44, stages=2),
    _wmma("wmma_mma4x2_warp2x4_dbuf_offset", _K16, (4, 2), 64, stages=2, pad=8),
    _wmma("wmma_mma4x4_warp2x2x2_dbuf", _K32, (4, 4), 47, stages=2),
    _wmma("wmma_mma4x4_warp2x2x2_dbuf_offset", _K32, (4, 4), 95, stages=2, pad=8),
    _wmma("wmma_m32n8k16_mma2x4_warp2x4_dbuf", _K16, (2, 4), 50, fragment=(32, 8), stages=2),
    _wmma("wmma_m32n8k16_mma2x4_warp2x4_dbuf_offset", _K16, (2, 4), 63, fragment=(32, 8), stages=2,
          pad=8),
    _wmma("wmma_m8n32k16_mma4x2_warp4x2_dbuf_offset", _K16, (4, 2), 63, fragment=(8, 32), stages=2,
          pad=8),
    *(
        _wmma(f"wmma_mma4x2_warp2x4_stage{s}", _K16, (4, 2), tflops, stages=s, asynchronous=True,
              pad=8)
        for s, tflops in ((2, 205), (3, 254), (4, 254))
    ),
    *(
        _wmma(f"wmma_mma4x2_warp2x4x2_stage{s}_dsmem", _K32, (4, 2), tflops, stages=s,
              asynchronous=True, pad=8)
        for s, tflops in ((2, 175), (3, 229), (4, 229))
    ),
    *(
        _wmma(f"wmma_mma4x2_warp2x4x2_stage{s}_dsmem_swizzle", _K32, (4, 2), tflops, stages=s,
              asynchronous=True, pad=8, block_swizzle=True)
        for s, tflops in ((2, 176), (3, 237), (4, 236))
    ),
    *(
        _wmma(f"wmma_mma4x4_warp4x4_stage{s}_dsmem", (256, 256, 16), (4, 4), tflops, stages=s,
              asynchronous=True, pad=8, accumulates=("fp16",), b_layouts=("kn",))
        for s, tflops in ((2, 292), (3, 278), (4, 289))
    ),
    *(
        _wmma(f"wmma_mma4x4_warp4x4_stage{s}_dsmem_swizzle", (256, 256, 16), (4, 4), tflops,
              stages=s, asynchronous=True, pad=8, accumulates=("fp16",), b_layouts=("kn",),
              block_swizzle=True)
        for s, tflops in ((2, 302), (3, 303), (4, 303))
    ),
    _wmma("wmma_mma2x4_warp4x4x2_rbuf_stage3_dsmem_swizzle", (128, 256, 32), (2, 4), 351, stages=3,
          asynchronous=True, pad=8, prefetch_fragments=True, block_swizzle=True),
    _wmma("wmma_mma2x4_warp4x4x2_rbuf_stage4_dsmem_swizzle", (128, 256, 32), (2, 4), 338, stages=4,
          asynchronous=True, pad=8, prefetch_fragments=True, block_swizzle=True),
    _wmma("wmma_mma2x2_warp4x4x4_rbuf_stage3_dsmem_swizzle", (128, 128, 64), (2, 2), 328, stages=3,
          asynchronous=True, pad=8, prefetch_fragments=True, block_swizzle=True, b_layouts=("nk",)),
)  # fmt: skip

_MMA = (
    _mma("mma_64x64x32_stage3", (64, 64, 32), (2, 2), 3, 243),
    _mma("mma_128x128x32_stage4", (128, 128, 32), (2, 2), 4, 401),
    _mma("mma_128x128x64_stage3", (128, 128, 64), (2, 2), 3, 403),
    _mma("mma_128x256x32_stage4", (128, 256, 32), (2, 4), 4, 390),
    _mma("mma_128x256x64_stage3", (128, 256, 64), (2, 4), 3, 413),
    _mma("mma_256x128x64_stage3", (256, 128, 64), (4, 2), 3, 412),
    _mma("mma_128x256x64_stage4", (128, 256, 64), (2, 4), 4, 405),
    _mma("mma_tf32_64x64x32_stage3", (64, 64, 32), (2, 2), 3, 125, precision="tf32"),
    _mma("mma_tf32_128x128x32_stage3", (128, 128, 32), (2, 2), 3, 184, precision="tf32"),
    _mma("mma_tf32x3_128x64x32_stage3", (128, 64, 32), (4, 2), 3, 50, precision="tf32x3"),
    _mma("mma_tf32x3_64x128x32_stage3", (64, 128, 32), (2, 4), 3, 52, precision="tf32x3"),
)

_SQUARE, _WIDE, _WIDE_TF32 = (128, 128, 64), (128, 256, 64), (128, 256, 32)

# Each rung adds one thing to the rung before it; the last serve products of other or few tiles.
_WGMMA = (
    _wgmma("wgmma_128x128x64_stage3", _PLAIN, _SQUARE, 3, 560, threads=256, min_blocks=2,
           pending=0),
    _wgmma("wgmma_pending_128x128x64_stage3", _PLAIN, _SQUARE, 3, 595, threads=256, min_blocks=2,
           pending=1),
    _wgmma("wgmma_roles_128x128x64_stage6", _ROLES, _SQUARE, 6, 522),
    _wgmma("wgmma_roles_128x256x64_stage4", _ROLES, _WIDE, 4, 606),
    _wgmma("wgmma_persistent_128x256x64_stage4", _ROLES, _WIDE, 4, 612, Tma(is_persistent=True)),
    _wgmma("wgmma_raster_128x256x64_stage4", _ROLES, _WIDE, 4, 612, Tma(is_persistent=True),
           raster_group=16),
    _wgmma("wgmma_cluster_128x256x64_stage4", _ROLES, _WIDE, 4, 616, _CLUSTER, raster_group=8),
    _wgmma("wgmma_store_128x256x64_stage3", _ROLES, _WIDE, 3, 662, _CLUSTER_STORED,
           raster_group=16),
    _wgmma("wgmma_pingpong_128x128x64_stage5", _PINGPONG, _SQUARE, 5, 635, _CLUSTER_STORED,
           raster_group=4),
    _wgmma("wgmma_store_128x192x64_stage4", _ROLES, (128, 192, 64), 4, 650, _CLUSTER_STORED,
           raster_group=4),
    _wgmma("wgmma_store_128x128x64_stage3", _PLAIN, _SQUARE, 3, 640, _STORED, pending=1,
           threads=256, min_blocks=2, raster_group=8),
    _wgmma("wgmma_store_64x128x64_stage8", _PLAIN, (64, 128, 64), 8, 540, _STORED, threads=128,
           pending=1, raster_group=8),
    _wgmma("wgmma_store_64x64x64_stage6", _PLAIN, (64, 64, 64), 6, 440, _STORED, threads=128,
           min_blocks=2, pending=1, raster_group=8),
    _wgmma("wgmma_split2_64x64x64_stage8", _SPLIT_K, (64, 64, 64), 8, 300, Tma(split_k=2),
           threads=128, pending=1, raster_group=8),
    _wgmma("wgmma_split2_128x128x64_stage6", _SPLIT_K, _SQUARE, 6, 500, Tma(split_k=2),
           threads=256, pending=1, raster_group=8),
    _wgmma("wgmma_split4_128x128x64_stage6", _SPLIT_K, _SQUARE, 6, 500, Tma(split_k=4),
           threads=256, pending=1, raster_group=8),
    _wgmma("wgmma_tf32_128x256x32_stage4", _ROLES, _WIDE_TF32, 4, 360, _CLUSTER, raster_group=8,
           precision="tf32"),
    KernelSpec(
        name="wgmma_tf32x3_128x128x32_stage4",
        source="wgmma_tf32x3_gemm.cu",
        tile=(128, 128, 32),
        threads=512,
        dtypes=FLOAT,
        precision="tf32x3",
        shared_bytes=4 * (3 * 128 * 32 * 4 + 16),
        uses_32bit_offsets=True,
        min_capability=(9, 0),
        max_capability=(9, 0),
        raster_group=8,
        h200_tflops=75,
        defines={"STAGES": 4},
    ),
)  # fmt: skip

KERNELS: dict[str, KernelSpec] = {
    spec.name: spec
    for spec in (
        *_SGEMM, *_HGEMM_CUDA_CORES, *_HGEMM_WMMA, *_MMA, *_WGMMA,
    )
}  # fmt: skip
