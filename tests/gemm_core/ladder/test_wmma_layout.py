"""The fragments of the device agree with fragments.py; a device that differs is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gemm_core.fragments import LAYOUTS
from gemm_core.ladder.spec import KERNEL_FOLDER
from gemm_core.ladder.wmma_layout import (
    PROBE_MACROS,
    SHAPES,
    LayoutError,
    check_wmma_layout,
    probe,
    refuse_other_layouts,
)
from gemm_core.runtime.compile import CACHE_VARIABLE, CompileError, compile_kernel
from gemm_core.runtime.device import device
from gemm_core.runtime.launch import POINTER, Kernel, parameter_macros

DUMP = Path(__file__).parent.parent / "programs" / "fragment_dump.cu"


def expected_probe() -> np.ndarray:
    """The result of `probe` on a device that agrees with fragments.py."""
    lanes, elements = np.arange(32)[:, None], np.arange(8)[None, :]
    positions = [LAYOUTS[shape].position(lanes, elements) for shape in SHAPES]
    return np.stack([np.stack([32 * row + column] * 2) for row, column in positions])


def test_a_device_with_another_accumulator_layout_is_refused() -> None:
    refuse_other_layouts(expected_probe(), "this GPU")
    other = expected_probe()
    other[1, 0, 5, [2, 3]] = other[1, 0, 5, [3, 2]]
    message = (
        r"this GPU keeps wmma m32n8k16 accumulators \(fp32\) otherwise .*: element 2 of lane 5"
    )
    with pytest.raises(LayoutError, match=message):
        refuse_other_layouts(other, "this GPU")


def launched(entry: str, *tensors: torch.Tensor) -> None:
    cubin = compile_kernel(DUMP, {}, device(0).arch)
    Kernel(entry, cubin.code, entry, (POINTER,) * len(tensors), 32, 1024, 0)(
        1, *(x.data_ptr() for x in tensors)
    )


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_probe_compiles_and_checks_its_parameters(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.core", reason="needs cuda.core (pip install '.[compile]')")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    source = KERNEL_FOLDER / "wmma_probe.cu"
    assert compile_kernel(source, PROBE_MACROS, arch).resources.spill_bytes == 0
    with pytest.raises(CompileError, match="disagree on the parameters of probe"):
        compile_kernel(source, {**PROBE_MACROS, **parameter_macros((POINTER, POINTER))}, arch)


@pytest.mark.gpu
def test_wmma_accumulators_of_this_device_have_the_published_layout() -> None:
    np.testing.assert_array_equal(probe(0), expected_probe())
    check_wmma_layout(0)


@pytest.mark.gpu
def test_ldmatrix_delivers_what_the_layouts_say() -> None:
    tile = torch.arange(256, dtype=torch.int16, device="cuda")
    out = torch.empty(2, 32, 8, dtype=torch.int16, device="cuda")
    launched("dump_ldmatrix", tile, out)
    matrix = tile.cpu().numpy().reshape(32, 8)
    for got, name in zip(out.cpu().numpy(), ("ldmatrix_x4", "ldmatrix_x4_trans"), strict=True):
        np.testing.assert_array_equal(got, LAYOUTS[name].scatter(matrix))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("entry", "layout", "dtype"),
    [
        ("dump_mma_f16", "mma_m16n8k16", torch.float16),
        ("dump_mma_bf16", "mma_m16n8k16", torch.bfloat16),
        ("dump_mma_tf32", "mma_m16n8k8_tf32", torch.float32),
    ],
)
def test_mma_multiplies_fragments_of_the_published_layout(
    entry: str, layout: str, dtype: torch.dtype
) -> None:
    """fragments.py scatters the operands over the lanes and gathers the product."""
    layout_a, layout_b = LAYOUTS[f"{layout}_a"], LAYOUTS[f"{layout}_b"]
    generator = np.random.default_rng(0)
    a = generator.integers(-8, 9, (layout_a.rows, layout_a.columns)).astype(np.float32)
    b = generator.integers(-8, 9, (layout_b.rows, layout_b.columns)).astype(np.float32)
    fragments = [
        torch.from_numpy(layout.scatter(matrix)).to(dtype).cuda()
        for layout, matrix in ((layout_a, a), (layout_b, b))
    ]
    c = torch.empty(32, 4, device="cuda")
    launched(entry, *fragments, c)
    np.testing.assert_array_equal(LAYOUTS["mma_m16n8k16_c"].gather(c.cpu().numpy()), a @ b)
