"""The threads of an emulated kernel wait for each other, however g++ is set up."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from gemm_core.emulation.kernel import EmulatedKernel, compile_library, missing_compiler

SOURCE = """
struct Arguments { int* out; };
__global__ void neighbours(Arguments p) {
  __syncthreads();
  p.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, int(threadIdx.x), 1);
}
"""


class Arguments(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p),)


@pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")
def test_threads_wait_for_each_other_where_jumps_between_stacks_are_checked(tmp_path: Path) -> None:
    """_FORTIFY_SOURCE, which some distributions' g++ sets, ends a process whose longjmp leaves the
    stack."""
    source = tmp_path / "kernel.cu"
    source.write_text(SOURCE)
    library = compile_library(source, "neighbours", {"_FORTIFY_SOURCE": "2"}, ())
    out = torch.zeros(64, dtype=torch.int32)
    EmulatedKernel("neighbours", library, Arguments, 64)(1, out.data_ptr())
    assert out.tolist() == [i ^ 1 for i in range(64)]
