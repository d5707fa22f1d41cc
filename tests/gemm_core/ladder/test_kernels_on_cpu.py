"""The real kernel sources, compiled for the CPU with gemm_core.emulation, under sanitizers.

Those whose operands TMA loads are in test_wgmma_on_cpu.py.
Integers small enough to be exact, so that every index, guard, tail and fragment must be right.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from gemm_core.emulation.kernel import HEADERS
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import KERNEL_FOLDER, GemmProblem, KernelSpec
from gemm_core.runtime.compile import INCLUDE_FOLDER
from tests.cases import cases
from tests.conftest import H200, shared_folder

PROGRAMS = Path(__file__).parent / "programs"
COMPILER = shutil.which("g++")

# A null pointer and a read beyond an object are AddressSanitizer's; the rest costs time to compile.
SANITIZERS = (
    "-fsanitize=address,undefined", "-fno-sanitize=null,vptr,object-size",
    "-fno-sanitize-recover=all",
)  # fmt: skip

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

# One kernel of every source, arithmetic and way of copying, with both layouts of B and all
# accumulators among them.
NAMES = {
    "sgemm_naive": ("kn", "fp32"),
    "sgemm_sliced_k": ("nk", "fp32"),
    "sgemm_t8x4_k16_dbuf_async": ("kn", "fp32"),
    "hgemm_t4x4_f16x4_pack_bcf_offset": ("nk", "fp16"),
    "hgemm_t8x8_k16_f16x8_pack_dbuf_async": ("kn", "fp16"),
    "wmma_m16n16k16_naive": ("nk", "fp16"),
    "wmma_mma4x2_warp2x4x2_rbuf_async_offset": ("kn", "fp32"),
    "wmma_mma4x2_warp2x4x2_async_offset": ("nk", "fp16"),
    "mma_64x64x32_stage3": ("kn", "fp32"),
    "mma_tf32x3_64x128x32_stage3": ("nk", "fp32"),
    "wgmma_tf32x3_128x128x32_stage4": ("kn", "fp32"),
}
# And of every layout of threads and number of buffers, where a GPU's machine has the cores.
MORE_NAMES = (
    "hgemm_naive_half",
    "sgemm_t8x8_bcf_dbuf_offset",
    "wmma_mma4x2",
    "wmma_m32n8k16_mma2x4_warp2x4_dbuf_offset",
    "wmma_m8n32k16_mma4x2_warp4x2_dbuf_offset",
    "mma_tf32_64x64x32_stage3",
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "programs")


def program(folder: Path, spec: KernelSpec, problem: GemmProblem) -> Path:
    """The kernel specialised to the problem's dtype and layout, as an executable; built once."""
    flags = (
        f"{problem.b_layout}{problem.aligned_a:d}{problem.aligned_b:d}{problem.c_vec2_aligned:d}"
    )
    flags += problem.accumulate
    path = folder / f"{spec.name}-{str(problem.dtype)[6:]}-{flags}"
    if not path.exists():
        macros = [f"-D{name}={value}" for name, value in spec.macros(problem).items()]
        source = KERNEL_FOLDER / spec.source
        unfinished = path.with_suffix(f".{os.getpid()}")  # another process may compile it too
        command = [
            str(COMPILER), "-std=c++17", "-Og", "-w", *SANITIZERS, *macros,
            f'-DGEMM_SOURCE="{source}"',
            f"-I{HEADERS}", f"-I{INCLUDE_FOLDER}", str(PROGRAMS / "gemm.cpp"),
            "-o", str(unfinished),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        unfinished.replace(path)
    return path


def stored(x: torch.Tensor, aligned: bool, padding: float) -> torch.Tensor:
    """x surrounded by padding, with rows at multiples of 16 bytes or not."""
    rows, cols = x.shape
    pitch = -(-cols // 8) * 8 if aligned else cols | 1
    field = torch.full((rows, pitch), padding, dtype=x.dtype)
    field[:, :cols] = x
    return field


def integers(rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 7 + cols * 3)
    return torch.randint(-2, 3, (rows, cols), generator=generator).to(dtype)


def run_on_cpu(
    folder: Path,
    spec: KernelSpec,
    x: torch.Tensor,
    y: torch.Tensor,
    b_layout: str,
    accumulate: str,
    aligned: bool,
) -> torch.Tensor:
    """x @ y by the kernel, which must not read the NaN around them nor write around the result."""
    (m, k), n, dtype = x.shape, y.shape[1], x.dtype
    a = stored(x, aligned, torch.nan)
    b = stored(y.T if b_layout == "nk" else y, aligned, torch.nan)
    c = torch.nn.functional.pad(stored(x.new_full((m, n), 77.0), aligned, 77.0), (0, 8), value=77.0)
    per_chunk = 16 // dtype.itemsize
    problem = GemmProblem(
        m=m, n=n, k=k, dtype=dtype, out_dtype=dtype, b_layout=b_layout,
        aligned_a=a.stride(0) % per_chunk == 0, aligned_b=b.stride(0) % per_chunk == 0,
        c_vec2_aligned=c.stride(0) % 2 == 0, precision=spec.precision, accumulate=accumulate,
    )  # fmt: skip
    assert spec.refuses(problem, H200) is None
    # No byte of a and b after the last element that may be read: the sanitizer sees a read beyond.
    raw = [
        bytes(x.contiguous().view(torch.uint8).flatten().tolist())[: max(0, end) * dtype.itemsize]
        for x, end in (
            (a, (m - 1) * a.stride(0) + k),
            (b, (n - 1) * b.stride(0) + k if b_layout == "nk" else (k - 1) * b.stride(0) + n),
            (c, c.numel()),
        )
    ]
    numbers = [
        spec.blocks(problem), spec.threads, m, n, k, a.stride(0), b.stride(0), c.stride(0),
        *(len(operand) for operand in raw),
    ]  # fmt: skip
    done = subprocess.run(
        [program(folder, spec, problem), *map(str, numbers)],
        input=b"".join(raw),
        capture_output=True,
        timeout=120,  # in case a thread misses a barrier
        env={**os.environ, "ASAN_OPTIONS": "detect_stack_use_after_return=0:detect_leaks=0"},
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    got = torch.frombuffer(bytearray(done.stdout), dtype=dtype).view(c.shape)
    assert (got[:, n:] == 77).all(), "wrote outside the result"
    return got[:, :n]


def check_exact(
    folder: Path,
    spec: KernelSpec,
    shape: tuple[int, int, int],
    b_layout: str,
    accumulate: str,
    aligned: bool,
) -> None:
    """Compare with the exact product of integers."""
    m, n, k = shape
    x, y = integers(m, k, spec.dtypes[0]), integers(k, n, spec.dtypes[0])
    got = run_on_cpu(folder, spec, x, y, b_layout, accumulate, aligned)
    wrong = (got != (x.float() @ y.float()).to(got.dtype)).nonzero()
    assert not len(wrong), f"{len(wrong)} wrong, first at {wrong[0].tolist()}"


# One kernel for each way of copying rows that are not aligned, and for each width of the copy.
UNALIGNED = (
    "sgemm_naive",
    "hgemm_naive_half",
    "sgemm_sliced_k",
    "sgemm_t8x8_bcf_dbuf_offset",
    "sgemm_t8x4_k16_dbuf_async",
    "hgemm_t4x4_f16x4_pack_bcf_offset",
    "hgemm_t8x8_k16_f16x8_pack_dbuf_async",
    "wmma_mma4x2",
    "wmma_mma4x2_warp2x4x2_async_offset",
    "mma_64x64x32_stage3",
    "mma_tf32_64x64x32_stage3",
    "wgmma_tf32x3_128x128x32_stage4",
)


CASES = cases(
    [
        (KERNELS[name], *variant)
        for name in (*NAMES, *MORE_NAMES)
        for variant in itertools.product(KERNELS[name].b_layouts, KERNELS[name].accumulates)
    ],
    here=[(KERNELS[name], *variant) for name, variant in NAMES.items()],
    name=lambda case: "-".join((case[0].name, *case[1:])),
)
every_case = pytest.mark.parametrize(("spec", "b_layout", "accumulate"), CASES)


def test_every_kernel_source_is_run_here() -> None:
    specs = [spec for spec in KERNELS.values() if spec.tma is None]
    assert {KERNELS[name].source for name in NAMES} == {spec.source for spec in specs}
    guarded = {spec.source for spec in specs if not spec.full_tiles_only}
    unaligned = {KERNELS[name].source for name in UNALIGNED if name in NAMES}
    assert unaligned == guarded
    assert sum(not case.marks for case in CASES) == len(NAMES)


@every_case
def test_ragged_shapes_are_exact(
    spec: KernelSpec, b_layout: str, accumulate: str, programs: Path
) -> None:
    """Less and more than a tile, fewer and more K tiles than stages, K tails of aligned rows."""
    tm, tn, tk = spec.tile
    shapes = [
        (tm + 1, tn - 1, 2 * tk + 7),
        (5, 3, 8),
        (tm, tn + 8, max(1, 3 * tk - 8)),
        (5, tn - 3, 6 * tk),
    ]
    if spec.full_tiles_only:
        shapes = [(tm, tn, tk), (2 * tm, 3 * tn, 4 * tk)]
    for shape in shapes:
        check_exact(programs, spec, shape, b_layout, accumulate, aligned=True)


@pytest.mark.parametrize(
    ("spec", "b_layout", "accumulate"),
    [case for case in CASES if case.values[0].name in UNALIGNED],
)
def test_unaligned_rows_and_odd_sizes_are_exact(
    spec: KernelSpec, b_layout: str, accumulate: str, programs: Path
) -> None:
    tm, _, tk = spec.tile
    for shape in ((tm - 1, 9, 2 * tk + 1), (1, 1, 1), (3, 2, 0)):
        check_exact(programs, spec, shape, b_layout, accumulate, aligned=False)


@every_case
def test_nan_and_infinity_reach_their_row_and_column_only(
    spec: KernelSpec, b_layout: str, accumulate: str, programs: Path
) -> None:
    """Next to zeros and large numbers too; both are in the last k, where a tail is zero-filled."""
    tm, tn, tk = spec.tile
    m, n, k = (tm, tn, 2 * tk) if spec.full_tiles_only else (tm + 1, tn - 1, 2 * tk + 7)
    x, y = integers(m, k, spec.dtypes[0]), integers(k, n, spec.dtypes[0])
    x[1], x[4] = 3, 0
    if accumulate == "fp32":
        y[:, 2] = 3000
    x[1, k - 1], x[m // 2, 0], y[k - 1, 3], y[k // 2, n - 2] = (
        torch.inf, torch.nan, torch.inf, -torch.inf,
    )  # fmt: skip
    got = run_on_cpu(programs, spec, x, y, b_layout, accumulate, aligned=True)
    truth = (x.double().unsqueeze(2) * y.double()).sum(1)
    rounded = truth.to(got.dtype)
    wrong = ~((got == rounded) | (got.isnan() & rounded.isnan()))
    assert not wrong.any(), f"{int(wrong.sum())} wrong, first at {wrong.nonzero()[0].tolist()}"
