"""The walk of one call: which Python files it enters, and how often it goes from one to another.

`python -m experiments.walk` prints both for the first and a later call with an S, on an emulated
GPU (which needs g++): for a torch CSR tensor and for a pattern. Problems of that size and kind were
planned before, and their kernels loaded, as in a process that has run for a while.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

import sddmm
from sddmm.testing import emulated_gpu, random_pattern

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("sddmm/", "gemm_core/")
# On a GPU no function of this repository is entered instead of these, the second of which is for
# tensors on the CPU, as those of an emulated GPU are ...
_TESTING = ("sddmm/testing/", "sddmm/ops/csr_samples.py")
# ... but this file instead of those.
_LAUNCHES, _LAUNCH = "gemm_core/emulation/", "gemm_core/runtime/launch.py"

_M, _N, _K, _NNZ = 600, 500, 64, 9000


class Walk(NamedTuple):
    """files: those that a call enters, in the order of the first entrance. changes: how often a
    function calls one of another file."""

    files: list[str]
    changes: int


def walk(call: Callable[[], object]) -> Walk:
    """The walk of a call through the packages of this repository."""
    files: dict[str, None] = {}
    changes = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal changes
        file = _file_of(frame) if event == "call" else None
        if file is None:
            return
        files.setdefault(file)
        caller = frame.f_back
        while caller is not None and _file_of(caller) is None:
            caller = caller.f_back
        changes += caller is not None and _file_of(caller) != file

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Walk(list(files), changes)


def _file_of(frame: FrameType) -> str | None:
    """The file of a function of the packages, as on a GPU; None for all other functions."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(_ROOT):
        return None
    name = path.relative_to(_ROOT).as_posix()
    if name.startswith(_LAUNCHES):
        return _LAUNCH
    return name if name.startswith(_PACKAGES) and not name.startswith(_TESTING) else None


def first_and_later(kind: str) -> tuple[Walk, Walk]:
    """The walks of two calls with a new S; kind: "csr", a torch tensor, or "pattern".

    Between them the second call prepares for many runs, and the third binds a and b.
    """
    a, b = torch.randn(_M, _K), torch.randn(_N, _K).mT
    with emulated_gpu():
        sddmm.sddmm(_sparse(kind, seed=1), a, b)
        S = _sparse(kind, seed=2)
        first = walk(lambda: sddmm.sddmm(S, a, b))
        for _ in range(2):
            sddmm.sddmm(S, a, b)
        return first, walk(lambda: sddmm.sddmm(S, a, b))


def _sparse(kind: str, seed: int) -> Any:
    pattern = random_pattern(_M, _N, _NNZ, seed=seed)
    if kind == "pattern":
        return pattern
    values: Tensor = torch.ones(_NNZ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR tensors beta
        return torch.sparse_csr_tensor(
            pattern.major_indices, pattern.col_indices, values, pattern.shape
        )


def main() -> None:
    for kind in ("csr", "pattern"):
        for name, each in zip(("first", "later"), first_and_later(kind), strict=True):
            print(f"{kind}, {name} call: {len(each.files)} files, {each.changes} changes of file")
            print("".join(f"  {file}\n" for file in each.files))


if __name__ == "__main__":
    main()
