"""A new kind of kernel is one folder and one line of the registry; the planner names no kernel."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import sddmm
from gemm_core.emulation.kernel import missing_compiler
from sddmm.backends import base
from sddmm.backends.cuda.backend import CudaBackend
from sddmm.backends.cuda.kernels.registry import KERNELS
from sddmm.testing import assert_close, emulated_gpu, random_pattern

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")

SOURCE = """
// SDDMM by one thread per nonzero. Limit: its loads are not coalesced.
#include "gemm_core/numeric.cuh"
#include "gemm_core/parameters.cuh"

using gemm_core::i64;

struct Arguments {
  const float *a, *b, *values;
  float* out;
  const int *rows, *cols, *perm;
  i64 nnz, pitch_a, pitch_b;
  double alpha;
  int k;
};
GEMM_CORE_CHECK_STRUCT(Arguments)

extern "C" __global__ void __launch_bounds__(SDDMM_THREADS) sddmm_kernel(const Arguments p) {
  const i64 i = static_cast<i64>(blockIdx.x) * SDDMM_THREADS + threadIdx.x;
  if (i >= p.nnz) return;
  float sum = 0;
  for (int t = 0; t < p.k; ++t)
    sum += p.a[p.rows[i] * p.pitch_a + t] * p.b[p.cols[i] * p.pitch_b + t];
  const i64 place = p.perm == nullptr ? i : p.perm[i];
  sum *= static_cast<float>(p.alpha);
  p.out[place] = p.values == nullptr ? sum : sum * p.values[place];
}
"""

HOST = """
import ctypes
from pathlib import Path

import torch

from gemm_core.arithmetic import ceil_div
from gemm_core.runtime.launch import DOUBLE, INT, LONG, POINTER
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.cost_model import Cost
from sddmm.backends.cuda.executor import (
    KernelPlan, address, make_launch, operand_args, rows_are_contiguous
)
from sddmm.backends.cuda.spec import ROW_IDS, KernelSpec


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("a", "b", "values", "out", "rows", "cols", "perm")),
        *((name, LONG) for name in ("nnz", "pitch_a", "pitch_b")),
        ("alpha", DOUBLE),
        ("k", INT),
    ]


class ThreadPerNonzero(KernelSpec):
    def refuses(self, problem, device):
        if problem.heads is not None:
            return "computes one head"
        if problem.out_dtype != torch.float32:
            return "writes float32"
        return super().refuses(problem, device)

    def needs_ahead(self, problem, model):
        return ROW_IDS

    def cost_us(self, problem, facts, model):
        return Cost(run_us=1e-3 * problem.nnz)

    def prepare(self, layouts, problem, model):
        nonzeros = layouts.by_row()
        kernel = loader.runtime.load_kernel(self, (), Arguments, model.device.index)

        def bind(a, b_t):
            args, _ = operand_args(a, b_t)
            del args["head_a"], args["head_b"]
            return make_launch(kernel, ceil_div(problem.nnz, self.threads), {
                **args, "rows": nonzeros.rows.data_ptr(), "cols": nonzeros.cols.data_ptr(),
                "perm": address(nonzeros.perm), "nnz": problem.nnz, "k": problem.k,
            })

        return (KernelPlan(bind, rows_are_contiguous),)


KERNEL = ThreadPerNonzero("thread_per_nonzero", str(Path(__file__).parent), (torch.float32,), 128)
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernel of a folder of its own, registered."""
    (tmp_path / "kernel.cu").write_text(SOURCE)
    (tmp_path / "host.py").write_text(HOST)
    spec = importlib.util.spec_from_file_location("thread_per_nonzero", tmp_path / "host.py")
    assert spec is not None
    assert spec.loader is not None
    host = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(host)
    backend = CudaBackend({**KERNELS, host.KERNEL.name: host.KERNEL})
    monkeypatch.setattr(base, "BACKENDS", [backend, *base.BACKENDS[1:]])
    return host.KERNEL


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_kernel_of_a_new_folder_is_chosen_where_it_is_the_fastest(
    kernel: Any, shuffled: bool
) -> None:
    S = random_pattern(30, 40, 200, layout="coo", shuffled=shuffled)
    a, b = torch.randn(30, 20), torch.randn(40, 20).mT
    with emulated_gpu() as launches:
        plan = sddmm.plan(S, k=20, dtype=torch.float32)
        assert_close(plan.run(a, b), S, a, b)
    assert f"kernel   {kernel.name}: 0.2 us predicted" in plan.explain()
    assert launches == ["analyse", kernel.name]


def test_a_kernel_of_a_new_folder_refuses_in_its_own_words_and_others_serve(kernel: Any) -> None:
    S = random_pattern(30, 40, 200)
    a, b = torch.randn(2, 30, 20), torch.randn(2, 20, 40)
    with emulated_gpu():
        plan = sddmm.plan(S, k=20, dtype=torch.float32, heads=2)
        assert_close(plan.run(a, b), S, a, b)
        with pytest.raises(ValueError, match="kernel 'thread_per_nonzero' computes one head"):
            sddmm.plan(S, k=20, dtype=torch.float32, heads=2, kernel=kernel.name)
    assert "not    thread_per_nonzero: computes one head" in plan.explain()


def test_a_slower_kernel_of_a_new_folder_serves_on_request(kernel: Any) -> None:
    S = random_pattern(300, 400, 20_000)
    a, b = torch.randn(300, 20), torch.randn(20, 400)
    with emulated_gpu() as launches:
        assert kernel.name not in sddmm.plan(S, k=20, dtype=torch.float32).explain().split("not")[0]
        plan = sddmm.plan(S, k=20, dtype=torch.float32, kernel=kernel.name)
        assert_close(plan.run(a, b), S, a, b)
    assert launches[-1] == kernel.name
