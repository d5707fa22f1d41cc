"""The kernels of the re-implemented baselines compile and agree with the host on parameters."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from experiments.sddmm.gpu_kernel import compile_baseline
from experiments.sddmm.methods import isratnisa, zcx
from gemm_core.runtime.compile import CompileError

METHODS = Path(str(isratnisa.__file__)).parent
KERNELS = [("zcx", zcx.Arguments, ())] + [
    ("isratnisa", isratnisa.Arguments, (("ISRATNISA_HEIGHT", str(height)),))
    for height in isratnisa.HEIGHTS
]


@pytest.mark.parametrize(("name", "parameters", "macros"), KERNELS)
def test_it_compiles_without_spilling(name: str, parameters: type, macros: tuple) -> None:
    cubin = compile_baseline(METHODS / f"{name}.cu", parameters, macros, "sm_90a")
    assert cubin.code.startswith(b"\x7fELF")
    assert cubin.resources.spill_bytes == 0


@pytest.mark.parametrize(("name", "parameters", "macros"), KERNELS[:2])
def test_a_host_struct_that_differs_is_a_compile_error(
    name: str, parameters: type[ctypes.Structure], macros: tuple
) -> None:
    class Swapped(ctypes.Structure):
        _fields_ = [parameters._fields_[1], parameters._fields_[0], *parameters._fields_[2:]]

    with pytest.raises(CompileError, match="disagree on the offset of parameter"):
        compile_baseline(METHODS / f"{name}.cu", Swapped, macros, "sm_90a")
