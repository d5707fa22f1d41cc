"""What does not fit is refused before it is allocated."""

from __future__ import annotations

import pytest
import torch

from experiments.bench.memory import refuse_bytes


def test_what_torch_keeps_for_reuse_is_available_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 50)
    assert refuse_bytes("cuda", "the rows take", 60) is None
    reason = refuse_bytes("cuda:0", "the rows take", 61)
    assert reason == "the rows take 61 bytes, more than half of 120 available"
