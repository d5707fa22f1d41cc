"""Describes the machine, the libraries and the code of a measurement."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

from gemm_core.runtime.variables import COMMIT

_ROOT = Path(__file__).parents[2]
_MEASURED = ("sddmm", "gemm_core", "datasets", "experiments")
_LIBRARIES = (
    *("torch", "numpy", "scipy", "numba", "cupy-cuda12x", "cupy-cuda13x", "cuda-core"),
    *("nvidia-cusparse", "nvidia-cusparse-cu12"),
)


@cache
def environment(device: str) -> dict[str, Any]:
    """Machine, device, library versions and the state of the code, as plain values."""
    # A copy without the history of its code gets its commit from outside.
    commit = os.environ.get(COMMIT.name, "")
    return {
        "device": device_name(device),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "os": platform.platform(terse=True),
        "python": platform.python_version(),
        "libraries": {name: v for name in _LIBRARIES if (v := _version(name)) is not None},
        "gpu": _gpu() if device.startswith("cuda") else None,
        "commit": commit or _git("rev-parse", "HEAD"),
        "dirty": not commit and bool(_git("status", "--porcelain", "--untracked-files=no")),
        "source": source_digest(),
    }


def device_name(device: str) -> str:
    """The marketing name of the processor that computes."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else _cpu_name()


@cache
def source_digest() -> str:
    """A digest of all code that a measurement depends on: another digest, another measurement."""
    digest = hashlib.blake2b(digest_size=8)
    for package in _MEASURED:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh"):
                digest.update(str(path.relative_to(_ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def available_memory() -> int:
    """The bytes of main memory that a process can allocate now without swapping."""
    available: int = psutil.virtual_memory().available
    return available


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> dict[str, str]:
    fields = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit")
    output = _output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    values = output.splitlines()[0].split(", ") if output else []
    return {"cuda": str(torch.version.cuda), **dict(zip(fields, values, strict=False))}


def _git(*arguments: str) -> str:
    return _output("git", "-C", str(_ROOT), *arguments)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
