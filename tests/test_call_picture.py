"""The picture of docs/how_a_call_goes.md shows the files that a GPU call enters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from experiments import call_picture
from gemm_core.emulation.kernel import missing_compiler
from sddmm import sddmm
from sddmm.testing import emulated_gpu, random_pattern
from tests.conftest import ROOT

PACKAGES = ("sddmm", "gemm_core")
# What stands in for CUDA, and what it stands in for.
EMULATION = ("sddmm/testing/", "gemm_core/emulation/")
REPLACED = {"gemm_core/runtime/launch.py"}


def files_entered(call: Callable[[], object]) -> list[str]:
    """The files of this repository whose functions a call enters, in order of the first entry."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            files.setdefault(path.relative_to(ROOT).as_posix())

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [name for name in files if name.startswith(PACKAGES) and not name.startswith(EMULATION)]


@pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")
def test_the_picture_shows_the_files_that_both_calls_enter() -> None:
    a, b = torch.randn(64, 64), torch.randn(64, 64).mT
    with emulated_gpu():
        sddmm(random_pattern(64, 64, 300, seed=1), a, b)  # the problem is known from now on
        pattern = random_pattern(64, 64, 300)
        first = files_entered(lambda: sddmm(pattern, a, b))
        second = files_entered(lambda: sddmm(pattern, a, b))
    for entered, shown in ((first, call_picture.steps()), (second, call_picture.steps(True))):
        assert set(entered) - REPLACED == set(shown) - REPLACED
        assert set(entered) <= set(shown)
