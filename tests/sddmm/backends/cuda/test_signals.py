"""signals changes the words that it is given, and waits for those that are not ready."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.signals.host import copy_signals, load, put_signals, take_signals
from sddmm.testing import H200, emulated_gpu
from tests.cases import cases
from tests.conftest import ROOT
from tests.sddmm.backends.cuda.test_compile import DEVICES, Compiler, compiler, own_cache
from tests.sddmm.memory import at_a_cliff

__all__ = ["compiler", "own_cache"]

# A program whose only call waits for a signal that never comes, or for one that nobody takes.
_WAITS = """
import torch
from sddmm.backends.cuda import loader
from sddmm.backends.cuda.kernels.signals.host import put_signals, take_signals
from sddmm.testing import H200, emulated_gpu
words = torch.tensor([0, 1], dtype=torch.int32, device={device!r})
def wait():
    index = loader.runtime.current_device()
    {change}([words.data_ptr() + 4 * {ready}], 0.5, index)
    print("waits", flush=True)
    {change}([words.data_ptr() + 4 * {word}], 0.5, index)
if {device!r} == "cuda":
    wait()
    torch.cuda.synchronize()
else:
    with emulated_gpu(H200):
        wait()
print("went on")
"""


def addresses(words: Tensor) -> list[int]:
    return [words.data_ptr() + 4 * i for i in range(words.numel())]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_all_words_are_put_and_taken_and_no_other(count: int) -> None:
    words = at_a_cliff(torch.zeros(count + 1, dtype=torch.int32))
    with emulated_gpu(H200) as launches:
        index = loader.runtime.current_device()
        put_signals(addresses(words)[1:], 1.0, index)
        assert words.tolist() == [0] + [1] * count
        words[0] = 1
        take_signals(addresses(words)[1:], 1.0, index)
    assert words.tolist() == [1] + [0] * count
    assert launches == ["signals"] * (2 * -(-count // 16))


def test_no_words_are_no_launch() -> None:
    with emulated_gpu(H200) as launches:
        put_signals([], 1.0, loader.runtime.current_device())
        take_signals([], 1.0, loader.runtime.current_device())
    assert launches == []


@pytest.mark.slow
@pytest.mark.parametrize(("change", "word"), [("take_signals", 0), ("put_signals", 1)])
def test_what_does_not_come_in_time_ends_the_launch(change: str, word: int) -> None:
    assert_it_fails("cpu", change, word)


def assert_it_fails(device: str, change: str, word: int) -> None:
    program = _WAITS.format(device=device, change=change, word=word, ready=1 - word)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode != 0, result.stderr
    assert result.stdout == "waits\n"
    # The emulated trap ends the process.
    assert device == "cuda" or result.returncode == -signal.SIGABRT, result.stderr


@pytest.mark.parametrize("arch", cases(DEVICES, here=["sm_90a"]))
def test_it_compiles_without_spilling(arch: str, compiler: Callable[[Device], Compiler]) -> None:
    made = compiler(DEVICES[arch])
    load(loader.runtime, DEVICES[arch].index)
    (cubin,) = made.cubins["signals"]
    assert cubin.resources.spill_bytes == 0


@pytest.mark.gpu
def test_a_gpu_waits_for_a_signal_of_another_stream() -> None:
    words, seen = torch.zeros(2, dtype=torch.int32, device="cuda"), []
    other, rows = torch.cuda.Stream(), torch.zeros(1 << 24, device="cuda")
    with torch.cuda.stream(other):  # loads kernels, which would wait for those that run
        torch.cuda._sleep(1)
        rows.fill_(0.0)
    seen.append(rows.clone())
    torch.cuda.synchronize()
    take_signals(addresses(words), 10.0, 0)
    seen.append(rows.clone())  # behind the signals
    with torch.cuda.stream(other):
        torch.cuda._sleep(10_000_000)
        rows.fill_(1.0)
        put_signals(addresses(words), 10.0, 0)
    read, reader = torch.empty(2, dtype=torch.int32, pin_memory=True), torch.cuda.Stream()
    copy_signals(words.data_ptr(), read, reader)
    reader.synchronize()
    assert set(read.tolist()) <= {0, 1}
    torch.cuda.synchronize()
    words[1] = 1
    torch.cuda.synchronize()
    copy_signals(words.data_ptr(), read, reader)
    reader.synchronize()
    assert read.tolist() == [0, 1]
    words[1] = 0
    assert bool((seen[1] == 1).all())
    assert words.tolist() == [0, 0]


@pytest.mark.gpu
@pytest.mark.parametrize(("change", "word"), [("take_signals", 0), ("put_signals", 1)])
def test_a_gpu_fails_when_a_signal_does_not_come(change: str, word: int) -> None:
    assert_it_fails("cuda", change, word)
