"""Compiles CUDA C++ to cubins at run time and caches them on disk by content.

NVRTC, through NVIDIA's cuda.core, compiles for any architecture, with or without a GPU.
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from gemm_core.runtime.variables import KERNEL_CACHE, user_cache_folder

_log = logging.getLogger(__name__)

INCLUDE_FOLDER = Path(__file__).parent.parent / "include"
CACHE_VARIABLE = KERNEL_CACHE.name

# As in pyproject.toml. Older releases need a driver when they compile.
OLDEST_CUDA_CORE = (0, 7)

_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class CompileError(RuntimeError):
    """A kernel does not compile; the message holds the first error's source line and the log."""


@dataclass(frozen=True)
class Resources:
    """The report of ptxas: registers per thread, bytes spilled, bytes of static shared memory."""

    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, with the log of its compilation."""

    code: bytes
    log: str

    @property
    def resources(self) -> Resources:
        return Resources(
            registers=_largest(r"Used (\d+) registers", self.log),
            spill_bytes=_largest(r"(\d+) bytes spill", self.log),
            shared_bytes=_largest(r"(\d+) bytes smem", self.log),
        )


def prefixed_macros(prefix: str, values: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Macros by their full names, with values as C++ spells them."""
    return {
        prefix + name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def compile_kernel(
    source: Path,
    macros: Mapping[str, str],
    arch: str,
    include: tuple[Path, ...] = (INCLUDE_FOLDER,),
) -> Cubin:
    """The cubin of a .cu file with these macros for `arch`, compiled or read from the cache.

    The cache key covers the content of the source and of every header it includes, the macros, the
    architecture and NVRTC's version. Raises CompileError, or ImportError without cuda.core.
    """
    begin = time.perf_counter()
    path = _cached_path(source, macros, arch, include)
    try:
        code, log = path.read_bytes(), path.with_suffix(".log").read_text(encoding="utf-8")
        _log_origin(source, arch, begin, f"read from {path}")
        return Cubin(code, log)
    except OSError:
        pass
    cubin = _compile(source, macros, arch, include)
    _log_origin(source, arch, begin, "compiled")
    # The log is written first, so that a cubin on disk always has its log.
    save(path.with_suffix(".log"), cubin.log.encode())
    save(path, cubin.code)
    return cubin


def _log_origin(source: Path, arch: str, begin: float, how: str) -> None:
    """Log where a kernel comes from. The folder names it where the file is a kernel.cu."""
    seconds = time.perf_counter() - begin
    _log.info("%s/%s for %s: %s in %.3f s", source.parent.name, source.name, arch, how, seconds)


def compile_all(jobs: Iterable[tuple[Path, Mapping[str, str], str]]) -> None:
    """Compile each (source, macros, arch) into the cache, on all cores. Raises CompileError."""
    uncached = [job for job in jobs if not _cached_path(*job).exists()]
    if not uncached:
        return
    import multiprocessing  # here, as importing sddmm needs neither
    from concurrent.futures import ProcessPoolExecutor

    spawn = multiprocessing.get_context("spawn")  # a fork would copy CUDA's state
    with ProcessPoolExecutor(mp_context=spawn) as pool:
        for future in [pool.submit(_compile_into_cache, *job) for job in uncached]:
            future.result()


def _compile_into_cache(source: Path, macros: Mapping[str, str], arch: str) -> None:
    """compile_kernel without its result, which would be sent back between processes."""
    compile_kernel(source, macros, arch)


def _cached_path(
    source: Path,
    macros: Mapping[str, str],
    arch: str,
    include: tuple[Path, ...] = (INCLUDE_FOLDER,),
) -> Path:
    return cache_folder() / f"{source.stem}-{arch}-{_key(source, macros, arch, include)}.cubin"


def cache_folder() -> Path:
    """The folder of cached cubins: $SDDMM_KERNEL_CACHE, or one in the user's cache folder."""
    folder = os.environ.get(CACHE_VARIABLE)
    return Path(folder) if folder else user_cache_folder() / "kernels"


def sources(source: Path, include: tuple[Path, ...] = (INCLUDE_FOLDER,)) -> list[Path]:
    """The file and every header of ours that it includes, directly or not."""
    files: dict[Path, None] = {}
    to_read = [source]
    while to_read:
        path = to_read.pop()
        if path in files:
            continue
        files[path] = None
        for name in _INCLUDED.findall(path.read_text(encoding="utf-8")):
            header = next((folder / name for folder in include if (folder / name).is_file()), None)
            if header is None:
                raise CompileError(f"{path}: no header {name!r} in {', '.join(map(str, include))}")
            to_read.append(header)
    return list(files)


def _key(source: Path, macros: Mapping[str, str], arch: str, include: tuple[Path, ...]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for path in sources(source, include):
        digest.update(path.read_bytes())
    digest.update(repr((sorted(macros.items()), arch, nvrtc_version())).encode())
    return digest.hexdigest()


@functools.cache
def nvrtc_version() -> tuple[int, int]:
    """The version of the compiler that compiles kernels here. ImportError without cuda.bindings."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return int(major), int(minor)


@functools.cache
def missing_compiler() -> str | None:
    """The reason why kernels cannot be compiled here, or None."""
    if not (find_spec("cuda") and find_spec("cuda.core")):
        return "cuda.core, which compiles the kernels, is not installed"
    try:
        installed = version("cuda-core")
    except PackageNotFoundError:  # not installed by pip or conda: its version is unknown
        return None
    if tuple(int(x) for x in re.findall(r"\d+", installed)[:2]) < OLDEST_CUDA_CORE:
        oldest = ".".join(map(str, OLDEST_CUDA_CORE))
        return f"cuda-core {installed} is installed, and {oldest} or newer is needed"
    return None


def _compile(
    source: Path, macros: Mapping[str, str], arch: str, include: tuple[Path, ...]
) -> Cubin:
    reason = missing_compiler()
    if reason is not None:
        raise ImportError(reason)
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=source.name,
        arch=arch,
        std="c++17",
        device_as_default_execution_space=True,  # lambdas carry no __device__
        include_path=[str(folder) for folder in include],
        define_macro=list(macros.items()) or None,
        ptxas_options=["-v"],
        lineinfo=True,
        # What NVRTC takes from a cache of its own, where there is a driver, has no log of ptxas.
        no_cache=True if nvrtc_version() >= (13, 0) else None,
    )
    log = io.StringIO()
    try:
        program = Program(source.read_text(encoding="utf-8"), "c++", options)
        code = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:
        text = f"{error}\n{log.getvalue()}".replace("\0", "").strip()
        raise CompileError(
            f"{source.name} does not compile for {arch} with {dict(macros)}\n"
            f"{_first_error(text, source, include)}{text}"
        ) from None
    return Cubin(code, log.getvalue())


def _first_error(text: str, source: Path, include: tuple[Path, ...]) -> str:
    """The source line of the first error in the log."""
    match = re.search(r"^(.+?)\((\d+)\): error", text, re.MULTILINE)
    if match is None:
        return ""
    name, number = match.group(1), int(match.group(2))
    for path in (Path(name), source.parent / name, *(folder / name for folder in include)):
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            if number <= len(lines):
                return f"{path.name}:{number}: {lines[number - 1].strip()}\n"
    return ""


def save(path: Path, content: bytes) -> None:
    """Write a file atomically, even while others write it; a read-only folder is no error."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = file.name
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        _log.debug("cannot cache %s: %s", path, error)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _largest(pattern: str, text: str) -> int:
    return max((int(x) for x in re.findall(pattern, text)), default=0)
