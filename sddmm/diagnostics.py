"""Collects what a bug report needs: versions, GPUs, caches, and who serves this machine.

`python -m sddmm` prints it. Each part is collected by itself; one that fails says why in a line.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gemm_core.runtime import variables
from gemm_core.runtime.compile import cache_folder, nvrtc_version
from gemm_core.runtime.device import format_capability
from sddmm.backends.base import BACKENDS, Backend
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.registry import (
    ATTENTION_KERNELS,
    BLOCK_KERNELS,
    KERNELS,
    SPMM_KERNELS,
)
from sddmm.dtypes import DTYPES, PRECISIONS, common_accumulator, dtype_name
from sddmm.problem import AttentionProblem, SddmmProblem, SpmmProblem

PACKAGE = Path(__file__).parent

# Distributions, with the module that shows whether one works. NVRTC is asked for its own version.
_LIBRARIES = {
    "numpy": "numpy", "scipy": "scipy", "numba": "numba", "cuda-core": "cuda.core",
    "cuda-bindings": "cuda.bindings.driver", "cupy-cuda12x": "cupy", "cupy-cuda13x": "cupy",
}  # fmt: skip

# A problem of ordinary size, which kernels refuse for its dtype and the device alone.
_SIZE, _K, _NNZ, _BLOCK = 4096, 128, 65536, (64, 64)

SERVES = "serves"


def collect() -> dict[str, Any]:
    """All parts, as values that JSON holds; a part that cannot be found out is {"error": why}."""
    parts: dict[str, Callable[[], Any]] = {
        "sddmm": _package,
        "machine": _machine,
        "torch": _torch,
        "driver": _driver,
        "gpus": _gpus,
        "libraries": lambda: {name: _library(name, module) for name, module in _LIBRARIES.items()},
        "nvrtc": _nvrtc,
        "caches": _caches,
        "backends": _backends,
        "kernels": _kernels,
        "variables": variables.in_force,
        "mistakes in variables": variables.mistakes,
    }
    return {name: _guarded(part) for name, part in parts.items()}


def _guarded(part: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return part(*arguments)
    except Exception as error:  # the report is for installations that are broken
        return {"error": _one_line(error)}


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _package() -> dict[str, str]:
    return {
        "version": _version("sddmm") or "unknown: it was never installed",
        "commit": _guarded(_commit),
        "folder": str(PACKAGE),
    }


def _commit() -> str:
    """The commit of the checkout that the package lies in, or that pip installed it from."""
    if (PACKAGE.parent / ".git").exists():
        changed = _output("git", "-C", str(PACKAGE.parent), "status", "--porcelain", "-uno")
        commit = _output("git", "-C", str(PACKAGE.parent), "rev-parse", "HEAD")
        return commit + (" and uncommitted changes" if changed else "")
    origin = importlib.metadata.distribution("sddmm").read_text("direct_url.json") or "{}"
    return str(json.loads(origin).get("vcs_info", {}).get("commit_id", "unknown"))


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _torch() -> dict[str, Any]:
    return {
        "version": torch.__version__,
        "built for CUDA": torch.version.cuda or "no",
        "sees a GPU": torch.cuda.is_available(),
    }


def _driver() -> str:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        return []
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [
        f"{gpu.name}, compute capability {format_capability((gpu.major, gpu.minor))}, "
        f"{gpu.total_memory / 2**30:.0f} GiB"
        for gpu in gpus
    ]


def _library(name: str, module: str) -> str:
    """The version of a distribution, and whether its module can be imported."""
    version = _version(name)
    if version is None:
        return "not installed"
    try:
        importlib.import_module(module)
    except Exception as error:
        return f"{version}, which cannot be imported: {_one_line(error)}"
    return version


def _nvrtc() -> str:
    """The version of the compiler that compiles kernels here."""
    return ".".join(map(str, nvrtc_version()))


def _caches() -> dict[str, Any]:
    return {
        "GPU kernels": _guarded(_folder, cache_folder, (".cubin", ".so")),
        "CPU kernels (numba)": _guarded(_folder, _numba_folder, (".nbc",)),
        "matrices of the laboratory": _guarded(_folder, _matrix_folder, (".npz",)),
    }


def _matrix_folder() -> Path:
    chosen = os.environ.get(variables.DATASETS_CACHE.name)
    return Path(chosen) if chosen else variables.user_cache_folder() / "datasets"


def _numba_folder() -> Path:
    from sddmm.backends.cpu.kernel import sample

    return Path(sample.stats.cache_path)


def _folder(find: Callable[[], Path], suffixes: tuple[str, ...]) -> dict[str, Any]:
    """A folder, its entries (files that end so), their bytes, and whether it can be written."""
    path = find()
    files = [file for file in path.rglob("*") if file.suffix in suffixes] if path.is_dir() else []
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return {
        "folder": str(path),
        "entries": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "writable": nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK),
    }


def _backends() -> dict[str, dict[str, Any]]:
    """For every device and backend: SERVES or the reason why not, by operator and kind of operands.

    The first backend that serves computes a problem.
    """
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    return {
        device.type: {backend.name: _answers(backend, device) for backend in BACKENDS}
        for device in devices
    }


def _answers(backend: Backend, device: torch.device) -> Any:
    missing = _answer(backend.available)
    if missing != SERVES:
        return missing
    operators: tuple[tuple[str, Callable[..., str | None], Mapping[str, Any]], ...] = (
        ("sddmm", backend.refuses, sampling_problems(device)),
        ("spmm", backend.refuses_product, product_problems(device)),
        ("sparse_attention", backend.refuses_attention, attention_problems(device)),
    )
    return _merged(
        {
            operator: _merged({kind: _answer(refuses, p) for kind, p in problems.items()})
            for operator, refuses, problems in operators
        }
    )


def _kernels() -> dict[str, Any]:
    """For every GPU and kernel: SERVES or its own reason why not, by kind of operands."""
    reason = loader.runtime.unavailable()
    if reason is not None:
        return {"error": reason}
    return {f"cuda:{index}": _kernels_of(index) for index in range(torch.cuda.device_count())}


def _kernels_of(index: int) -> dict[str, Any]:
    gpu, device = loader.runtime.device(index), torch.device("cuda", index)
    families: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("sddmm", KERNELS, sampling_problems(device)),
        ("sddmm of blocks", BLOCK_KERNELS, sampling_problems(device, _BLOCK)),
        ("spmm", SPMM_KERNELS, product_problems(device)),
        ("sparse_attention", ATTENTION_KERNELS, attention_problems(device)),
    )
    return {
        operator: {
            name: _merged({kind: _answer(kernel.refuses, p, gpu) for kind, p in problems.items()})
            for name, kernel in kernels.items()
        }
        for operator, kernels, problems in families
    }


def _answer(ask: Callable[..., str | None], *arguments: Any) -> str:
    """SERVES, or the reason that `ask` gives why not."""
    answer = _guarded(ask, *arguments)
    if isinstance(answer, dict):
        return str(answer["error"])
    return SERVES if answer is None else str(answer)


def _merged(answers: dict[str, Any]) -> Any:
    """One answer where all are the same."""
    first, *others = answers.values()
    return first if all(other == first for other in others) else answers


def sampling_problems(
    device: torch.device, blocksize: tuple[int, int] | None = None
) -> dict[str, SddmmProblem]:
    """A problem of sddmm for every dtype of operands, and every precision of float32."""
    return {
        dtype_name(dtype) + ("" if precision == "ieee" else f" {precision}"): SddmmProblem(
            _SIZE, _SIZE, _K, _NNZ, dtype, dtype, precision, torch.int64, None, device, blocksize
        )
        for dtype in DTYPES
        for precision in (PRECISIONS if dtype == torch.float32 else ("ieee",))
    }


def product_problems(device: torch.device) -> dict[str, SpmmProblem]:
    """A problem of spmm for every dtype of operands; half types have float32 weights."""
    return {
        dtype_name(dtype): SpmmProblem(
            _SIZE, _SIZE, _K, _NNZ, dtype, common_accumulator(dtype, dtype), dtype, torch.int64,
            None, False, False, device,
        )
        for dtype in DTYPES
    }  # fmt: skip


def attention_problems(device: torch.device) -> dict[str, AttentionProblem]:
    """A problem of sparse attention for every dtype, which fused kernels refuse or compute."""
    return {
        dtype_name(dtype): AttentionProblem(
            _SIZE, _SIZE, _NNZ, _K, _K, 1, dtype, torch.int64, device
        )
        for dtype in DTYPES
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except FileNotFoundError:
        raise RuntimeError(f"{command[0]} was not found") from None
    return done.stdout.strip()
