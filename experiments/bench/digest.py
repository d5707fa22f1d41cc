"""Digests of the code that a measurement depends on, so that other changes keep its record valid.

A module depends on itself, on the modules that it imports, in functions too, and on the CUDA
sources that they name, with their headers. A package that is imported as such counts whole.
Comments, docstrings and formatting do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("sddmm", "gemm_core", "datasets", "experiments")
BENCH = Path(__file__).parent

# What times and verifies, whatever the objective: it belongs to every measurement.
MEASURING = tuple(BENCH / name for name in ("measuring.py", "timing.py", "verify.py"))


def file_of(thing: Any) -> Path:
    """The file in which a module, a class or a function is written."""
    return Path(inspect.getfile(inspect.unwrap(thing)))


_LIBRARIES = ("torch", "numpy", "scipy", "numba", "cupy-cuda12x", "cupy-cuda13x", "cuda-core")
_CUDA = (".cu", ".cuh")
_FOLDERS = {
    name: tuple(
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob(name)
        if "emulation" not in path.relative_to(ROOT).parts  # which no measurement runs
    )
    for name in ("include", "kernels")
}
_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\')|//[^\n]*|/\*.*?\*/', re.DOTALL)


@dataclass(frozen=True)
class Code:
    """The code that a measurement depends on.

    sources: the files of the method, from which imports are followed. measuring: the files that
    measure it; they count by themselves, and what they import does not. unmeasured: files that the
    method imports although its times do not depend on them.
    """

    sources: tuple[Path, ...]
    measuring: tuple[Path, ...] = MEASURING
    unmeasured: tuple[Path, ...] = ()

    def files(self) -> frozenset[Path]:
        """The sources and all that they depend on, without the bench and what measures."""
        return _dependencies(self)

    def digest(self) -> str:
        return _digest_of(self)

    def libraries(self) -> dict[str, str]:
        """The versions of torch and of the libraries that the files import."""
        names = {"torch", *(name for path in self.files() for name in _imported(path))}
        versions = {}
        for library in _LIBRARIES:
            if library.partition("-")[0] in names:
                try:
                    versions[library] = importlib.metadata.version(library)
                except importlib.metadata.PackageNotFoundError:
                    continue
        return versions


@functools.cache
def _dependencies(code: Code) -> frozenset[Path]:
    excluded = {*code.measuring, *code.unmeasured}
    files: set[Path] = set()
    waiting = list(code.sources)
    while waiting:
        path = waiting.pop()
        if path not in files and path not in excluded and BENCH not in path.parents:
            files.add(path)
            waiting += _named_files(path)
    return frozenset(files)


@functools.cache
def _digest_of(code: Code) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted({*code.files(), *code.measuring}):
        digest.update(f"{path.relative_to(ROOT)}\n{_code(path)}\n".encode())
    return digest.hexdigest()


@functools.cache
def _named_files(path: Path) -> tuple[Path, ...]:
    """The files of this repository that one file names."""
    if path.suffix in _CUDA:
        folders = (path.parent, *_FOLDERS["include"])
        names = _INCLUDED.findall(_text(path))
        return tuple(f / name for name in names for f in folders if (f / name).is_file())
    files = [path.with_suffix(".cu")]
    for name in _imported(path):
        files += _files(name)
    for node in ast.walk(ast.parse(_text(path))):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if node.value.isidentifier():  # which may name the folder of a kernel
            files += (folder / node.value / "kernel.cu" for folder in _FOLDERS["kernels"])
        if node.value.endswith(_CUDA):
            name = Path(node.value).name
            files += [p for p in path.parent.rglob("*") if p.name == name]
            files += (folder / name for folder in _FOLDERS["kernels"])
    return tuple(p for p in files if p.is_file())


@functools.cache
def _imported(path: Path) -> frozenset[str]:
    """The dotted names that a Python file imports anywhere, with those of what it takes of them."""
    if path.suffix != ".py":
        return frozenset()
    names = set()
    for node in ast.walk(ast.parse(_text(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {part for part in parts if _module(part).is_file()}
            names |= modules | ({node.module or ""} if modules != parts else set())
    tops = {name.partition(".")[0] for name in names}
    return frozenset(names | (tops - set(PACKAGES)))


def _module(name: str) -> Path:
    return (ROOT / name.replace(".", "/")).with_suffix(".py")


def _files(name: str) -> list[Path]:
    """The file of a module, or all code of a package; nothing for other libraries."""
    if name.partition(".")[0] not in PACKAGES:
        return []
    if _module(name).is_file():
        return [_module(name)]
    package = ROOT / name.replace(".", "/")
    return [p for p in package.rglob("*") if p.suffix in (".py", *_CUDA)]


@functools.cache
def _code(path: Path) -> str:
    """The code of a file without comments and docstrings, in one formatting."""
    return python_code(_text(path)) if path.suffix == ".py" else cuda_code(_text(path))


def python_code(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def cuda_code(text: str) -> str:
    code = _COMMENT.sub(lambda match: match.group(1) or " ", text)
    lines = (" ".join(line.split()) for line in code.splitlines())
    return "\n".join(line for line in lines if line)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
