"""Kernels compiled by g++, with the interface of gemm_core.runtime.launch.Kernel."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gemm_core.runtime.compile import INCLUDE_FOLDER, CompileError, cache_folder, sources
from gemm_core.runtime.launch import Parameters
from gemm_core.runtime.tensor_map import is_tma_readable

FOLDER = Path(__file__).parent
HEADERS = FOLDER / "include"
_PROGRAM = FOLDER / "library.cpp"
_FLAGS = (
    "-std=c++17", "-Og", "-w", "-shared", "-fPIC", "-fvisibility=hidden",
    "-fsanitize=undefined", "-fno-sanitize-recover=all",
    # A null pointer crashes without a check; the check takes a fifth of the compiler's time.
    "-fno-sanitize=null,vptr,object-size",
    # One thread at a time launches, so static variables need no guards of C++'s library.
    "-fno-threadsafe-statics",
)  # fmt: skip
# Kernels need nothing of C++'s library, which takes an eighth of the time to link. What they need
# beside these libraries is an error when they are linked, on every machine.
_LIBRARIES = ("-Wl,-z,defs", "-nodefaultlibs", "-lubsan", "-lm", "-lc", "-lgcc")

# The emulation keeps the state of a launch (threadIdx, shared memory) in global variables.
_one_launch = threading.Lock()


def missing_compiler() -> str | None:
    """None, or why kernels cannot be compiled for the CPU here."""
    return None if shutil.which("g++") else "g++, which compiles kernels for the CPU, is not found"


class EmulatedKernel:
    """A kernel that runs on the CPU at once, on operands in the memory of the CPU.

    blocks_per_sm: the blocks that a multiprocessor is taken to hold at a time.
    """

    def __init__(
        self,
        name: str,
        library: Path,
        parameters: tuple[Any, ...] | type[ctypes.Structure],
        threads: int,
        blocks_per_sm: int = 1,
    ) -> None:
        self.name, self.parameters, self.threads = name, parameters, threads
        self.blocks_per_sm = blocks_per_sm
        self._run = ctypes.CDLL(str(library)).run

    def __call__(self, blocks: int, *values: int | float | bytes) -> None:
        self.launch(blocks, Parameters(self.parameters, values))

    def launch(self, blocks: int, arguments: Parameters) -> None:
        with _one_launch:
            self._run(blocks, self.threads, ctypes.c_void_p(arguments.pointers[0]))


def compile_library(
    source: Path,
    function: str,
    macros: Mapping[str, str],
    include: tuple[Path, ...] = (INCLUDE_FOLDER,),
) -> Path:
    """A shared library that runs the kernel `function` of a .cu file, compiled or found on disk.

    The key is the content of every source, the macros and the flags. Raises CompileError.
    """
    include = (HEADERS, *include)
    macros = {**macros, "EMULATED_KERNEL": function}
    path = cache_folder() / f"{source.parent.name}-cpu-{_key(source, macros, include)}.so"
    if not path.exists():
        _compile(source, macros, include, path)
    return path


def _compile(
    source: Path, macros: Mapping[str, str], include: tuple[Path, ...], path: Path
) -> None:
    reason = missing_compiler()
    if reason is not None:
        raise CompileError(reason)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")  # another process may compile it too
    done = subprocess.run(
        [
            "g++", *_FLAGS, f'-DEMULATED_SOURCE="{source}"',
            *(f"-D{name}={value}" for name, value in macros.items()),
            *(f"-I{folder}" for folder in include), str(_PROGRAM), *_LIBRARIES,
            "-o", str(unfinished),
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise CompileError(f"{source} does not compile for the CPU\n{done.stderr}")
    unfinished.replace(path)


def _key(source: Path, macros: Mapping[str, str], include: tuple[Path, ...]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for path in (*sources(_PROGRAM, include), *sources(source, include)):
        digest.update(path.read_bytes())
    digest.update(repr((sorted(macros.items()), _FLAGS, _LIBRARIES, _compiler_version())).encode())
    return digest.hexdigest()


@functools.cache
def _compiler_version() -> str:
    """The version that g++ reports; empty if it is not installed."""
    if missing_compiler() is not None:
        return ""
    return subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True).stdout


def tensor_map(x: Tensor, box_rows: int, box_columns: int) -> bytes:
    """The emulation's map of x, in place of the one that the CUDA driver encodes.

    Like the driver it maps no empty tensor.
    """
    assert is_tma_readable(x)
    assert x.numel() > 0
    heads = x.shape[0] if x.dim() == 3 else 1
    head = x.stride(0) if x.dim() == 3 else 0
    size = x.element_size()
    return struct.pack(
        "Pqqqqqiii68x", x.data_ptr(), x.shape[-1], x.shape[-2], heads, x.stride(-2) * size,
        head * size, box_columns, box_rows, size,
    )  # fmt: skip
