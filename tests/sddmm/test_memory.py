"""Too little memory is an error that says for what, and how many bytes it needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sddmm
from gemm_core.emulation.kernel import missing_compiler
from sddmm.backends.cuda.planner import Planner
from sddmm.testing import emulated_gpu, random_pattern

S = random_pattern(6, 5, 14)
PLAN = sddmm.plan(S, k=3, dtype=torch.float32)
Q, K, V = torch.zeros(2, 6, 3), torch.zeros(2, 5, 3), torch.zeros(2, 5, 4)
VALUES = torch.zeros(14)

CALLS: dict[str, Callable[[], Tensor]] = {
    r"a result of shape \(14,\) needs 56 bytes": lambda: PLAN.run(Q[0], K[0].mT),
    r"a result of shape \(2, 14\) needs 112 bytes": lambda: sddmm.sddmm(S, Q, K.mT),
    r"a product of shape \(2, 6, 4\) needs 192 bytes": lambda: sddmm.spmm(S, V, values=VALUES),
    r"a result of attention of shape \(2, 6, 4\) needs 192 bytes": lambda: sddmm.sparse_attention(
        S, Q, K, V
    ),
}


@pytest.mark.parametrize("message", CALLS)
def test_a_result_that_does_not_fit_is_told_in_bytes(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = CALLS[message]
    call()  # what is prepared is kept

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 20))
    with pytest.raises(torch.OutOfMemoryError, match=f"^{message}; 10 of 20 are free on cpu$"):
        call()


PREPARED: dict[str, Callable[[], object]] = {
    "sddmm": lambda: sddmm.plan(S, k=3, dtype=torch.float32),
    "spmm": lambda: sddmm.spmm(S, V, values=VALUES),
    "attention": lambda: sddmm.sparse_attention(S, Q, K, V),
}


@pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")
@pytest.mark.parametrize("prepare", PREPARED.values(), ids=PREPARED)
def test_a_plan_for_a_gpu_that_does_not_fit_is_told_in_bytes(
    prepare: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 20))
    monkeypatch.setattr(Planner, "prepare", full)
    message = "preparing a plan of 14 nonzeros, at least, needs 56 bytes; 10 of 20 are free on cpu"
    with emulated_gpu(), pytest.raises(torch.OutOfMemoryError, match=f"^{message}$"):
        prepare()
