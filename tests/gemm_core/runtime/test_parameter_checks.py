"""A kernel compiles only where it reads its parameters as the host packs them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from gemm_core.runtime.compile import CACHE_VARIABLE, CompileError, compile_kernel
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER, parameter_macros
from gemm_core.runtime.tensor_map import TensorMap

pytest.importorskip("cuda.core", reason="needs cuda.core (pip install '.[compile]')")

STRUCT = """
#include "gemm_core/parameters.cuh"
#include "gemm_core/ptx/tma.cuh"
struct Tiles { const int* places; long long count; };
struct Arguments { %s };
GEMM_CORE_CHECK_STRUCT(Arguments)
extern "C" __global__ void kernel(const __grid_constant__ Arguments p) {}
"""
LIST = """
#include "gemm_core/parameters.cuh"
extern "C" __global__ void kernel(%s) {}
GEMM_CORE_CHECK_LIST(kernel)
"""


class Arguments(ctypes.Structure):
    _fields_ = [
        ("map", TensorMap),
        ("a", POINTER),
        ("b", POINTER),
        ("tiles.places", POINTER),
        ("tiles.count", LONG),
        ("k", INT),
        ("alpha", DOUBLE),
        *((f"unused{i}", LONG) for i in range(2)),
    ]


RIGHT = (
    "gemm_core::ptx::TensorMap map; const float *a, *b; Tiles tiles; int k; double alpha; "
    "long long unused0, unused1;"
)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def compile_text(folder: Path, text: str, types: object) -> None:
    source = folder / "kernel.cu"
    source.write_text(text)
    compile_kernel(source, parameter_macros(types), "sm_90a")


def test_the_hosts_own_struct_compiles(tmp_path: Path) -> None:
    compile_text(tmp_path, STRUCT % RIGHT, Arguments)


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("float *a, *b", "float *b, *a", "the offset of parameter a"),
        ("int k; double alpha;", "double alpha; int k;", "the offset of parameter k"),
        ("int k", "long long room; int k", "the size of the parameters"),
        ("int k", "float factor", 'class "Arguments" has no member "k"'),
    ],
)
def test_a_struct_of_another_order_or_size_does_not_compile(
    tmp_path: Path, was: str, becomes: str, message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        compile_text(tmp_path, STRUCT % RIGHT.replace(was, becomes), Arguments)


def test_a_nested_struct_is_compared_field_by_field(tmp_path: Path) -> None:
    text = (STRUCT % RIGHT).replace(
        "const int* places; long long count;", "long long count; const int* places;"
    )
    with pytest.raises(CompileError, match=r"the offset of parameter tiles\.places"):
        compile_text(tmp_path, text, Arguments)


@pytest.mark.parametrize(
    ("parameters", "first_different"),
    [
        ("const float* __restrict__ a, long long k, int n", "FIRST_DIFFERENT=1"),
        ("const float* __restrict__ a, int n", "FIRST_DIFFERENT=-1"),
    ],
)
def test_a_list_of_other_parameters_does_not_compile(
    tmp_path: Path, parameters: str, first_different: str
) -> None:
    compile_text(tmp_path, LIST % "const float* __restrict__ a, int n, long long k",
                 (POINTER, INT, LONG))  # fmt: skip
    with pytest.raises(CompileError, match="disagree on the parameters of kernel") as caught:
        compile_text(tmp_path, LIST % parameters, (POINTER, INT, LONG))
    assert first_different in str(caught.value)
