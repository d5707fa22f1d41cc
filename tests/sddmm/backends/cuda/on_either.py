"""Tests of kernels that run on a GPU, and emulated on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sddmm.testing import H200, emulated_gpu

FEW = replace(H200, sm_count=2)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@contextlib.contextmanager
def kernels_of(device: str) -> Iterator[list[str]]:
    """A GPU's kernels on its tensors, or the same emulated; gives the names of those launched."""
    if device == "cuda":
        yield []
    else:
        with emulated_gpu(FEW) as launches:
            yield launches
