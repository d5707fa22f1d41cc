"""CUDA C++ to cubins at run time, kept on disk by content.

NVRTC, through NVIDIA's cuda.core, compiles for a named architecture, with or without a GPU at hand.
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_log = logging.getLogger(__name__)

INCLUDE_FOLDER = Path(__file__).parent.parent / "include"
CACHE_VARIABLE = "SDDMM_KERNEL_CACHE"

# As in pyproject.toml. Older ones ask for the driver's version when they compile.
_OLDEST_CUDA_CORE = (0, 7)

_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class CompileError(RuntimeError):
    """A kernel that does not compile: the log, and the line of the first error."""


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of a kernel: registers a thread, bytes spilled, static shared bytes."""

    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, and the log of its compilation."""

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
    """The cubin of a .cu file with these macros, compiled for `arch` or found on disk.

    The key is the content of the source and of every header it includes, the macros, the
    architecture and NVRTC's version. Raises CompileError, or ImportError without cuda.core.
    """
    path = _path(source, macros, arch, include)
    try:
        code, log = path.read_bytes(), path.with_suffix(".log").read_text(encoding="utf-8")
        return Cubin(code, log)
    except OSError:
        pass
    cubin = _compile(source, macros, arch, include)
    # The log first: a cubin on disk always has its log.
    save(path.with_suffix(".log"), cubin.log.encode())
    save(path, cubin.code)
    return cubin


def compile_all(jobs: Iterable[tuple[Path, Mapping[str, str], str]]) -> None:
    """Fill the cache with (source, macros, arch), on all cores. Raises the first CompileError."""
    missing = [job for job in jobs if not _path(*job).exists()]
    if not missing:
        return
    spawn = multiprocessing.get_context("spawn")  # a fork would take CUDA's state with it
    with ProcessPoolExecutor(mp_context=spawn) as pool:
        for future in [pool.submit(_fill, *job) for job in missing]:
            future.result()


def _fill(source: Path, macros: Mapping[str, str], arch: str) -> None:
    """As compile_kernel; a cubin need not travel back."""
    compile_kernel(source, macros, arch)


def _path(
    source: Path,
    macros: Mapping[str, str],
    arch: str,
    include: tuple[Path, ...] = (INCLUDE_FOLDER,),
) -> Path:
    return cache_folder() / f"{source.stem}-{arch}-{_key(source, macros, arch, include)}.cubin"


def cache_folder() -> Path:
    """Where cubins are kept: $SDDMM_KERNEL_CACHE, or the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sddmm" / "kernels"


def sources(source: Path, include: tuple[Path, ...] = (INCLUDE_FOLDER,)) -> list[Path]:
    """The file and every header of ours that it includes, directly or not."""
    found: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        for name in _INCLUDED.findall(path.read_text(encoding="utf-8")):
            header = next((folder / name for folder in include if (folder / name).is_file()), None)
            if header is None:
                raise CompileError(f"{path}: no header {name!r} in {', '.join(map(str, include))}")
            waiting.append(header)
    return list(found)


def _key(source: Path, macros: Mapping[str, str], arch: str, include: tuple[Path, ...]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for path in sources(source, include):
        digest.update(path.read_bytes())
    digest.update(repr((sorted(macros.items()), arch, _nvrtc_version())).encode())
    return digest.hexdigest()


@functools.cache
def _nvrtc_version() -> tuple[int, int]:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return int(major), int(minor)


@functools.cache
def missing() -> str | None:
    """None, or why kernels cannot be compiled here."""
    if not (find_spec("cuda") and find_spec("cuda.core")):
        return "cuda.core, which compiles the kernels, is not installed"
    try:
        installed = version("cuda-core")
    except PackageNotFoundError:  # not installed by pip or conda: nothing is known of it
        return None
    if tuple(int(x) for x in re.findall(r"\d+", installed)[:2]) < _OLDEST_CUDA_CORE:
        oldest = ".".join(map(str, _OLDEST_CUDA_CORE))
        return f"cuda-core {installed} is installed, and {oldest} or newer is needed"
    return None


def _compile(
    source: Path, macros: Mapping[str, str], arch: str, include: tuple[Path, ...]
) -> Cubin:
    reason = missing()
    if reason is not None:
        raise ImportError(reason)
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=source.name,
        arch=arch,
        std="c++17",
        device_as_default_execution_space=True,  # lambdas have no room for __device__
        include_path=[str(folder) for folder in include],
        define_macro=list(macros.items()) or None,
        ptxas_options=["-v"],
        lineinfo=True,
    )
    log = io.StringIO()
    try:
        program = Program(source.read_text(encoding="utf-8"), "c++", options)
        code = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:
        text = f"{error}\n{log.getvalue()}".strip()
        raise CompileError(
            f"{source.name} does not compile for {arch} with {dict(macros)}\n"
            f"{_first_error(text, source, include)}{text}"
        ) from None
    return Cubin(code, log.getvalue())


def _first_error(text: str, source: Path, include: tuple[Path, ...]) -> str:
    """The source line that the log's first error points at."""
    found = re.search(r"^(.+?)\((\d+)\): error", text, re.MULTILINE)
    if found is None:
        return ""
    name, number = found.group(1), int(found.group(2))
    for path in (Path(name), source.parent / name, *(folder / name for folder in include)):
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            if number <= len(lines):
                return f"{path.name}:{number}: {lines[number - 1].strip()}\n"
    return ""


def save(path: Path, content: bytes) -> None:
    """Whole or not at all, whoever else writes the same file; a read-only folder is no error."""
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
