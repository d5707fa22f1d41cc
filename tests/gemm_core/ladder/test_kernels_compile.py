"""Every kernel compiles for every architecture we name, into the instructions that it promises."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import ELEMENTS, KERNEL_FOLDER, GemmProblem, KernelSpec
from gemm_core.runtime.compile import CACHE_VARIABLE, INCLUDE_FOLDER, Cubin, compile_kernel
from tests.cases import cases
from tests.conftest import H200, shared_folder

pytest.importorskip("cuda.core", reason="needs cuda.core (pip install '.[compile]')")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(shared_folder(tmp_path_factory, "ladder-kernels")))
        yield


def problem_of(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, aligned: bool = True, accumulate: str = ""
) -> GemmProblem:
    return GemmProblem(
        m=256, n=256, k=256, dtype=dtype, out_dtype=dtype, b_layout=b_layout, aligned_a=aligned,
        aligned_b=aligned, c_vec2_aligned=aligned, aligned_c=aligned, precision=spec.precision,
        accumulate=accumulate or spec.accumulates[0],
    )  # fmt: skip


def compiled(spec: KernelSpec, problem: GemmProblem, arch: str) -> Cubin:
    return compile_kernel(KERNEL_FOLDER / spec.source, spec.macros(problem), arch)


def variants(spec: KernelSpec) -> list[tuple[str, str]]:
    """Layouts of B with accumulators."""
    return list(itertools.product(spec.b_layouts, spec.accumulates))


def variant_of(name: str) -> tuple[str, str]:
    """One variant of a kernel, another one for its neighbours."""
    served = variants(KERNELS[name])
    return served[list(KERNELS).index(name) % len(served)]


def assert_no_spill(spec: KernelSpec, variant: tuple[str, str], arch: str) -> None:
    b_layout, accumulate = variant
    problem = problem_of(spec, spec.dtypes[0], b_layout, accumulate=accumulate)
    cubin = compiled(spec, problem, arch)
    resources = cubin.resources
    assert resources.spill_bytes == 0, (variant, cubin.log)
    assert "wgmma.mma_async instructions are serialized" not in cubin.log
    assert 0 < resources.registers <= 255, cubin.log
    assert resources.shared_bytes + spec.shared_bytes <= 232_448


def promised(spec: KernelSpec) -> set[str]:
    """The machine instructions that a kernel's name and family promise."""
    if spec.tma is not None:
        return {"HGMMA", "UTMALDG"} | ({"UTMASTG", "STSM"} if spec.tma.stores else set())
    if spec.source.startswith("wgmma"):
        return {"HGMMA"}
    if spec.source == "mma_gemm.cu":
        return {"HMMA", "LDSM", "LDGSTS"}
    asynchronous = {"LDGSTS"} if spec.defines.get("ASYNC") is True else set()
    if spec.source.startswith("wmma"):
        return {"HMMA"} | asynchronous
    return {"FFMA" if spec.dtypes == (torch.float32,) else "HFMA2"} | asynchronous


# The first kernel of each source, and of each set of instructions that a source is compiled to.
_FIRSTS = {
    (spec.source, frozenset(promised(spec))): name for name, spec in reversed(KERNELS.items())
}
ONE_OF_EACH_SOURCE = {spec.source: name for name, spec in reversed(KERNELS.items())}


@pytest.mark.parametrize("name", cases(KERNELS, here=_FIRSTS.values()))
def test_every_kernel_compiles_without_spilling(name: str) -> None:
    """For Hopper, one variant of each."""
    assert_no_spill(KERNELS[name], variant_of(name), "sm_90a")


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_every_variant_compiles_for_every_architecture_without_spilling(name: str) -> None:
    spec = KERNELS[name]
    for arch in ("sm_80", "sm_89", "sm_90a") if spec.min_capability < (9, 0) else ("sm_90a",):
        for variant in variants(spec):
            assert_no_spill(spec, variant, arch)


GUARDED = [name for name, spec in KERNELS.items() if not spec.full_tiles_only]


@pytest.mark.parametrize("name", cases(GUARDED, here=ONE_OF_EACH_SOURCE.values()))
def test_unaligned_operands_and_every_dtype_compile_too(name: str) -> None:
    spec = KERNELS[name]
    for dtype in spec.dtypes:
        problem = problem_of(spec, dtype, spec.b_layouts[0], aligned=False)
        assert compiled(spec, problem, "sm_90a").resources.spill_bytes == 0


OLDER = [name for name in ONE_OF_EACH_SOURCE.values() if KERNELS[name].min_capability < (9, 0)]


@pytest.mark.parametrize("name", OLDER)
def test_every_source_compiles_for_older_architectures(name: str) -> None:
    assert_no_spill(KERNELS[name], variants(KERNELS[name])[-1], "sm_80")


@pytest.mark.parametrize("name", ONE_OF_EACH_SOURCE.values())
def test_every_source_compiles_for_the_dtypes_of_results_that_it_does_not_refuse(name: str) -> None:
    spec = KERNELS[name]
    for out_dtype in (*ELEMENTS, torch.float64):
        problem = problem_of(spec, spec.dtypes[0], spec.b_layouts[0])
        problem = replace(problem, out_dtype=out_dtype)
        reason = spec.refuses(problem, H200)
        if out_dtype == torch.float64:
            assert reason == "stores float16, bfloat16, float32, not float64"
        else:
            assert reason is None
            assert compiled(spec, problem, "sm_90a").resources.spill_bytes == 0


def opcodes(cubin: Cubin, folder: Path) -> set[str]:
    from cuda.pathfinder import find_nvidia_binary_utility

    nvdisasm = find_nvidia_binary_utility("nvdisasm")
    if nvdisasm is None:
        pytest.skip("needs nvdisasm (pip install '.[compile]')")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin.code)
    text = subprocess.run([nvdisasm, path], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", text))


NAMED = [name for name in KERNELS if "naive" not in name]


@pytest.mark.parametrize("name", cases(NAMED, here=_FIRSTS.values()))
def test_kernels_are_made_of_the_instructions_they_promise(name: str, tmp_path: Path) -> None:
    spec = KERNELS[name]
    b_layout, accumulate = variant_of(name)
    problem = problem_of(spec, spec.dtypes[0], b_layout, accumulate=accumulate)
    used = opcodes(compiled(spec, problem, "sm_90a"), tmp_path)
    assert promised(spec) <= used
    assert not {"LDL", "STL"} & used


def test_device_headers_include_each_other_only() -> None:
    """They include nothing that a user may lack, and nothing of torch."""
    for path in [*INCLUDE_FOLDER.rglob("*.cuh"), *KERNEL_FOLDER.glob("*.cu")]:
        for line in path.read_text().splitlines():
            if line.lstrip().startswith("#include"):
                assert re.fullmatch(r'#include "gemm_core/[\w/]+\.cuh"', line), f"{path}: {line}"


SOURCES = sorted(KERNEL_FOLDER.glob("*.cu"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_macro_is_named_in_the_config_and_parameters_are_checked(source: Path) -> None:
    """A macro of the host stands in the Config only, which gives it a name and a comment."""
    config_struct = re.compile(r"(struct Config \{.*?^\};)", re.MULTILINE | re.DOTALL)
    head, config, body = config_struct.split(source.read_text(), maxsplit=1)
    assert not re.search(r"\bGEMM_(?!CORE_)[A-Z]", head + body)
    assert all("//" in line for line in config.splitlines()[1:-1])
    assert re.search(r"^GEMM_CORE_CHECK_(LIST|STRUCT)\([\w<>:]+\)$", body, re.M)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_kernel_opens_with_what_it_adds_and_what_limits_it(source: Path) -> None:
    head = source.read_text().partition("#include")[0].splitlines()
    assert len(head) == 3 or source.stem == "wmma_probe"  # which is no rung
    assert all(line.startswith("// ") for line in head)
