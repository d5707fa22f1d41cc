"""Digests of the code that a measurement stands on, so that other code leaves its record alone.

A module stands on itself, on the modules that it imports, in functions too, and on the CUDA sources
that they name, with their headers. A package that is imported as such counts whole. Comments,
docstrings and formatting do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("sddmm", "gemm_core", "datasets", "experiments")

# What verifies and times: it belongs to every method and brings none of its own imports.
MEASURING = tuple(
    ROOT / path
    for path in (
        "experiments/sddmm/case.py",
        "experiments/bench/measure.py",
        "experiments/bench/timing.py",
        "experiments/sddmm/verify.py",
        "sddmm/testing/outputs.py",
    )
)
# What a method may import of the laboratory without standing on it.
_BESIDE = tuple(
    ROOT / "experiments" / name
    for name in (
        "bench/config.py",
        "bench/environment.py",
        "bench/errors.py",
        "sddmm/methods/__init__.py",
    )
)

_LIBRARIES = ("torch", "numpy", "scipy", "numba", "cupy-cuda12x", "cupy-cuda13x", "cuda-core")
_CUDA = (".cu", ".cuh")
_CUDA_BACKEND = ROOT / "sddmm" / "backends" / "cuda"
_INCLUDE_FOLDERS = (ROOT / "gemm_core" / "include", _CUDA_BACKEND / "include")
_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\')|//[^\n]*|/\*.*?\*/', re.DOTALL)


@functools.cache
def measured_code(*sources: Path, measuring: tuple[Path, ...] = MEASURING) -> str:
    """Digest of what is measured, of all that it stands on, and of what measures it."""
    return _digest([*reached(sources), *measuring])


@functools.cache
def code_of(*sources: Path) -> str:
    """Digest of the code of these files and of all that they stand on."""
    return _digest(reached(sources))


@functools.cache
def libraries_of(*sources: Path) -> dict[str, str]:
    """The versions of torch and of the libraries that these files and what they reach import."""
    names = {"torch", *(name for path in reached(sources) for name in _imported(path))}
    found = {}
    for library in _LIBRARIES:
        if library.partition("-")[0] in names:
            try:
                found[library] = importlib.metadata.version(library)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def reached(sources: Iterable[Path]) -> frozenset[Path]:
    """The files that these stand on, themselves among them."""
    found: set[Path] = set()
    waiting = list(sources)
    while waiting:
        path = waiting.pop()
        if path not in found and path not in MEASURING and path not in _BESIDE:
            found.add(path)
            waiting += _next(path)
    return frozenset(found)


@functools.cache
def _next(path: Path) -> tuple[Path, ...]:
    """The files of this repository that one file names."""
    if path.suffix in _CUDA:
        folders = (path.parent, *_INCLUDE_FOLDERS)
        names = _INCLUDED.findall(_text(path))
        return tuple(f / name for name in names for f in folders if (f / name).is_file())
    found = [path.with_suffix(".cu")]
    for name in _imported(path):
        found += _files(name)
    for node in ast.walk(ast.parse(_text(path))):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if node.value.isidentifier():  # which may name the folder of a kernel
            found.append(_CUDA_BACKEND / "kernels" / node.value / "kernel.cu")
        if node.value.endswith(_CUDA):
            name = Path(node.value).name
            found += [p for p in path.parent.rglob("*") if p.name == name]
            found += (ROOT / "gemm_core" / "ladder" / "kernels").glob(name)
    return tuple(p for p in found if p.is_file())


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
    if package / "__init__.py" in _BESIDE:
        return []
    return [p for p in package.rglob("*") if p.suffix in (".py", *_CUDA)]


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(set(paths)):
        digest.update(f"{path.relative_to(ROOT)}\n{_code(path)}\n".encode())
    return digest.hexdigest()


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
    code = _COMMENT.sub(lambda found: found.group(1) or " ", text)
    lines = (" ".join(line.split()) for line in code.splitlines())
    return "\n".join(line for line in lines if line)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
