"""Every kernel compiles, for every architecture we name, and compilation is kept by content."""

from __future__ import annotations

import itertools
import os
import re
import stat
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import ELEMENTS, KERNEL_FOLDER, GemmProblem, KernelSpec
from gemm_core.runtime import compile as compiling
from gemm_core.runtime.compile import (
    CACHE_VARIABLE,
    INCLUDE_FOLDER,
    CompileError,
    Cubin,
    compile_kernel,
    sources,
)
from tests.conftest import H200, ROOT

pytest.importorskip("cuda.core", reason="needs cuda.core (pip install '.[compile]')")

ARCHS = ("sm_80", "sm_89", "sm_90a")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("kernels")))
        yield


def problem(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, aligned: bool = True, accumulate: str = ""
) -> GemmProblem:
    return GemmProblem(
        m=256, n=256, k=256, dtype=dtype, out_dtype=dtype, b_layout=b_layout, aligned_a=aligned,
        aligned_b=aligned, c_vec2_aligned=aligned, precision=spec.precision,
        accumulate=accumulate or spec.accumulates[0],
    )  # fmt: skip


def compiled(spec: KernelSpec, made: GemmProblem, arch: str) -> Cubin:
    return compile_kernel(KERNEL_FOLDER / spec.source, spec.macros(made), arch)


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        (name, arch)
        for name, spec in KERNELS.items()
        for arch in (ARCHS if spec.min_capability < (9, 0) else ARCHS[-1:])
    ],
)
def test_every_kernel_compiles_without_spilling(name: str, arch: str) -> None:
    spec = KERNELS[name]
    for b_layout, accumulate in itertools.product(spec.b_layouts, spec.accumulates):
        made = problem(spec, spec.dtypes[0], b_layout, accumulate=accumulate)
        resources = compiled(spec, made, arch).resources
        assert resources.spill_bytes == 0
        assert 0 < resources.registers <= 255
        assert resources.shared_bytes + spec.shared_bytes <= 232_448


@pytest.mark.parametrize("name", [name for name in KERNELS if not KERNELS[name].full_tiles_only])
def test_unaligned_operands_and_every_dtype_compile_too(name: str) -> None:
    spec = KERNELS[name]
    for dtype in spec.dtypes:
        made = problem(spec, dtype, spec.b_layouts[0], aligned=False)
        assert compiled(spec, made, "sm_90a").resources.spill_bytes == 0


ONE_OF_EACH_SOURCE = {spec.source: name for name, spec in reversed(KERNELS.items())}


@pytest.mark.parametrize("name", ONE_OF_EACH_SOURCE.values())
def test_every_source_compiles_for_the_dtypes_of_results_that_it_does_not_refuse(name: str) -> None:
    spec = KERNELS[name]
    for dtype, out_dtype in itertools.product(spec.dtypes, (*ELEMENTS, torch.float64)):
        made = replace(problem(spec, dtype, spec.b_layouts[0]), out_dtype=out_dtype)
        reason = spec.refuses(made, H200)
        if out_dtype == torch.float64:
            assert reason == "stores float16, bfloat16, float32, not float64"
        else:
            assert reason is None
            assert compiled(spec, made, "sm_90a").resources.spill_bytes == 0


def opcodes(cubin: Cubin, folder: Path) -> set[str]:
    from cuda.pathfinder import find_nvidia_binary_utility

    nvdisasm = find_nvidia_binary_utility("nvdisasm")
    if nvdisasm is None:
        pytest.skip("needs nvdisasm (pip install '.[compile]')")
    path = folder / "kernel.cubin"
    path.write_bytes(cubin.code)
    text = subprocess.run([nvdisasm, path], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", text))


def promised(spec: KernelSpec) -> set[str]:
    """The machine instructions that a kernel's name and family speak of."""
    if spec.source.startswith("wgmma"):
        return {"HGMMA"}
    if spec.source == "mma_gemm.cu":
        return {"HMMA", "LDSM", "LDGSTS"}
    asynchronous = {"LDGSTS"} if spec.defines.get("ASYNC") is True else set()
    if spec.source.startswith("wmma"):
        return {"HMMA"} | asynchronous
    return {"FFMA" if spec.dtypes == (torch.float32,) else "HFMA2"} | asynchronous


@pytest.mark.parametrize("name", [name for name in KERNELS if "naive" not in name])
def test_kernels_are_made_of_the_instructions_they_promise(name: str, tmp_path: Path) -> None:
    spec = KERNELS[name]
    made = problem(spec, spec.dtypes[0], spec.b_layouts[0])
    found = opcodes(compiled(spec, made, "sm_90a"), tmp_path)
    assert promised(spec) <= found
    assert not {"LDL", "STL"} & found


def test_headers_are_found_through_headers() -> None:
    names = {path.name for path in sources(KERNEL_FOLDER / "mma_gemm.cu")}
    assert {"mma_gemm.cu", "mainloop_mma.cuh", "ldmatrix.cuh", "cvt.cuh"} <= names


def test_device_headers_include_each_other_only() -> None:
    """Nothing that a user may lack, and no torch."""
    for path in [*INCLUDE_FOLDER.rglob("*.cuh"), *KERNEL_FOLDER.glob("*.cu")]:
        for line in path.read_text().splitlines():
            if line.lstrip().startswith("#include"):
                assert re.fullmatch(r'#include "gemm_core/[\w/]+\.cuh"', line), f"{path}: {line}"


class TestCache:
    """One small kernel with a header, in folders of the test's own."""

    @pytest.fixture(autouse=True)
    def _kernel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = tmp_path / "cache"
        monkeypatch.setenv(CACHE_VARIABLE, str(self.cache))
        self.header = tmp_path / "value.cuh"
        self.header.write_text("#define VALUE 1.f\n")
        self.source = tmp_path / "kernel.cu"
        self.source.write_text(
            '#include "value.cuh"\nextern "C" __global__ void gemm(float* x) { *x = VALUE ADD; }\n'
        )
        self.compilations = 0
        compile_for_real = compiling._compile

        def counting(*arguments: object) -> Cubin:
            self.compilations += 1
            return compile_for_real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(compiling, "_compile", counting)

    def make(self, add: str = "", arch: str = "sm_90a") -> Cubin:
        return compile_kernel(self.source, {"ADD": add}, arch, (self.source.parent,))

    def test_the_same_content_is_compiled_once(self) -> None:
        assert self.make() == self.make()
        assert self.compilations == 1
        assert self.make().resources.registers > 0

    def test_source_header_macro_and_architecture_are_in_the_key(self) -> None:
        self.make()
        self.make(add="+ 1.f")
        self.make(arch="sm_80")
        self.header.write_text("#define VALUE 2.f\n")
        self.make()
        self.source.write_text(self.source.read_text() + "\n")
        self.make()
        assert self.compilations == 5

    def test_a_compile_error_shows_the_log_and_the_line(self) -> None:
        with pytest.raises(CompileError, match=r"kernel\.cu does not compile for sm_90a") as told:
            self.make(add="+ nonsense")
        assert "kernel.cu:2: extern" in str(told.value)
        assert 'identifier "nonsense" is undefined' in str(told.value)

    def test_a_missing_header_is_named(self) -> None:
        self.source.write_text('#include "absent.cuh"\n')
        with pytest.raises(CompileError, match=r"no header 'absent\.cuh'"):
            self.make()

    def test_a_folder_that_cannot_be_written_costs_time_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
        assert self.make().code == self.make().code
        assert self.compilations == 2

    def test_concurrent_writers_leave_whole_files_only(self) -> None:
        results: list[Cubin] = []
        threads = [threading.Thread(target=lambda: results.append(self.make())) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {result.code for result in results} == {results[0].code}
        assert {path.suffix for path in self.cache.iterdir()} == {".cubin", ".log"}
        assert len(list(self.cache.iterdir())) == 2
        assert not any(stat.S_ISDIR(os.stat(path).st_mode) for path in self.cache.iterdir())


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        ("0.6.0", "cuda-core 0.6.0 is installed, and 0.7 or newer is needed"),
        ("0.10.1", None),
        ("1.2.2", None),
    ],
)
def test_a_cuda_core_that_is_too_old_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: str, reason: str | None
) -> None:
    monkeypatch.setattr(compiling, "version", lambda name: installed)
    monkeypatch.setattr(compiling, "find_spec", lambda name: name)
    compiling.missing.cache_clear()
    try:
        assert compiling.missing() == reason
        if reason is not None:
            monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
            source = next(KERNEL_FOLDER.glob("*.cu"))
            with pytest.raises(ImportError, match=reason):
                compile_kernel(source, {}, "sm_90a")
    finally:
        compiling.missing.cache_clear()


def test_the_oldest_cuda_core_is_that_of_the_requirements() -> None:
    oldest = ".".join(map(str, compiling._OLDEST_CUDA_CORE))
    text = (ROOT / "pyproject.toml").read_text()
    assert set(re.findall(r"cuda-core(?:\[\w+\])?>=([\d.]+)", text)) == {oldest}
