"""Compilation is cached by content, and an error shows where it is."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import pytest

from gemm_core.ladder.spec import KERNEL_FOLDER
from gemm_core.runtime.compile import (
    CACHE_VARIABLE,
    OLDEST_CUDA_CORE,
    CompileError,
    Cubin,
    compile_kernel,
    missing_compiler,
    sources,
)
from tests.conftest import ROOT

pytest.importorskip("cuda.core", reason="needs cuda.core (pip install '.[compile]')")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path, cache: Path) -> Path:
    """A small kernel with a header beside it."""
    (tmp_path / "value.cuh").write_text("#define VALUE 1.f\n")
    path = tmp_path / "kernel.cu"
    path.write_text(
        '#include "value.cuh"\nextern "C" __global__ void gemm(float* x) { *x = VALUE ADD; }\n'
    )
    return path


def compiled(source: Path, add: str = "", arch: str = "sm_90a") -> Cubin:
    return compile_kernel(source, {"ADD": add}, arch, (source.parent,))


def test_the_same_content_is_read_from_the_cache(source: Path, cache: Path) -> None:
    first = compiled(source)
    assert first.resources.registers > 0
    assert compiled(source) == first
    (log,) = cache.glob("*.log")
    log.write_text("read from disk")
    assert compiled(source) == Cubin(first.code, "read from disk")


def test_a_compilation_and_a_look_into_the_cache_are_told_at_info(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gemm_core")
    compiled(source)
    compiled(source)
    first, second = caplog.messages
    kernel = rf"{source.parent.name}/kernel\.cu for sm_90a: "
    assert re.fullmatch(kernel + r"compiled in \d\.\d{3} s", first)
    assert re.fullmatch(kernel + r"read from .*\.cubin in 0\.\d{3} s", second)


def test_source_header_macro_and_architecture_are_in_the_key(source: Path, cache: Path) -> None:
    compiled(source)
    compiled(source, add="+ 1.f")
    compiled(source, arch="sm_80")
    (source.parent / "value.cuh").write_text("#define VALUE 2.f\n")
    compiled(source)
    source.write_text(source.read_text() + "\n")
    compiled(source)
    assert len(list(cache.glob("*.cubin"))) == 5


def test_a_compile_error_shows_the_log_and_the_line(source: Path) -> None:
    with pytest.raises(CompileError, match=r"kernel\.cu does not compile for sm_90a") as error:
        compiled(source, add="+ nonsense")
    assert "kernel.cu:2: extern" in str(error.value)
    assert 'identifier "nonsense" is undefined' in str(error.value)
    assert "\0" not in str(error.value)


def test_a_missing_header_is_named(source: Path) -> None:
    source.write_text('#include "absent.cuh"\n')
    with pytest.raises(CompileError, match=r"no header 'absent\.cuh'"):
        compiled(source)


def test_a_folder_that_cannot_be_written_costs_time_only(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    assert compiled(source).code == compiled(source).code


def test_concurrent_writers_leave_complete_files_only(source: Path, cache: Path) -> None:
    cubins: list[Cubin] = []
    threads = [threading.Thread(target=lambda: cubins.append(compiled(source))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({cubin.code for cubin in cubins}) == 1
    assert sorted(path.suffix for path in cache.iterdir()) == [".cubin", ".log"]


def test_headers_are_found_through_headers() -> None:
    names = {path.name for path in sources(KERNEL_FOLDER / "mma_gemm.cu")}
    assert {"mma_gemm.cu", "mainloop_mma.cuh", "ldmatrix.cuh", "cvt.cuh"} <= names


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        ("0.6.0", "cuda-core 0.6.0 is installed, and 0.7 or newer is needed"),
        ("0.10.1", None),
        ("1.2.2", None),
    ],
)
def test_a_cuda_core_that_is_too_old_is_refused_in_words(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: str,
    reason: str | None,
) -> None:
    metadata = tmp_path / "site" / f"cuda_core-{installed}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: cuda-core\nVersion: {installed}\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    missing_compiler.cache_clear()
    try:
        assert missing_compiler() == reason
        if reason is not None:
            with pytest.raises(ImportError, match=reason):
                compiled(source)
    finally:
        missing_compiler.cache_clear()


def test_the_oldest_cuda_core_is_that_of_the_requirements() -> None:
    oldest = ".".join(map(str, OLDEST_CUDA_CORE))
    text = (ROOT / "pyproject.toml").read_text()
    assert set(re.findall(r"cuda-core(?:\[\w+\])?>=([\d.]+)", text)) == {oldest}
