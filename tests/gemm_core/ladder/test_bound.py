"""What `gemm` keeps of a call serves later calls of its kind and no others, here on the CPU."""

from __future__ import annotations

import ctypes
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from gemm_core import gemm
from gemm_core.emulation.kernel import (
    EmulatedKernel,
    compile_library,
    missing_compiler,
    tensor_map,
)
from gemm_core.ladder import api, bound
from gemm_core.ladder.bound import BoundLaunch, BoundLaunches
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import KERNEL_FOLDER, PARAMETERS, GemmProblem, KernelSpec
from gemm_core.ladder.tma_arguments import tma_arguments
from gemm_core.runtime.launch import Parameters
from tests.conftest import H200
from tests.gemm_core.ladder.test_api import WRONG

needs_compiler = pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")
MATRICES = tuple(torch.empty(2, 2) for _ in range(3))
NAIVE, STORE = "sgemm_naive", "wgmma_store_128x256x64_stage3"


class KernelOnCpu:
    """Multiplies the matrices in memory that the parameters of its launch describe."""

    parameters = PARAMETERS

    def __init__(self, problem: GemmProblem) -> None:
        self.dtype, self.b_layout = problem.dtype, problem.b_layout

    def launch(self, blocks: int, packed: Parameters) -> None:
        if blocks == 0:
            return
        a, b, c, m, n, k, *pitches = (getattr(packed.block, f"p{i}") or 0 for i in range(9))
        rows_of_b = (k, n) if self.b_layout == "kn" else (n, k)
        left = self.matrix(a, (m, k), pitches[0])
        right = self.matrix(b, rows_of_b, pitches[1])
        product = left @ (right if self.b_layout == "kn" else right.T)
        self.matrix(c, (m, n), pitches[2]).copy_(product)

    def matrix(self, address: int, shape: tuple[int, int], pitch: int) -> Tensor:
        if 0 in shape:
            return torch.empty(shape, dtype=self.dtype)
        size = ((shape[0] - 1) * pitch + shape[1]) * self.dtype.itemsize
        memory = (ctypes.c_char * size).from_address(address)
        return torch.frombuffer(memory, dtype=self.dtype).as_strided(shape, (pitch, 1))


def load(spec: KernelSpec, problem: GemmProblem, device_index: None) -> Any:
    if spec.tma is None:
        return KernelOnCpu(problem)
    macros = {**spec.macros(problem), "EMULATED_CLUSTER_BLOCKS": str(spec.tma.cluster)}
    library = compile_library(KERNEL_FOLDER / spec.source, "gemm", macros)
    return EmulatedKernel(spec.name, library, spec.parameters, spec.threads)


def map_at(encoded: bytes, address: int) -> bytes:
    """As the emulation encodes maps, which begin with the address."""
    return address.to_bytes(8, "little") + encoded[8:]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GemmProblem]]:
    """gemm as on a GPU, with kernels that run on the CPU; the problems for which it chose one."""
    problems: list[GemmProblem] = []
    choose = api.choose

    def recorded(problem: GemmProblem, *others: Any) -> KernelSpec:
        problems.append(problem)
        return choose(problem, *others)

    few = replace(H200, sm_count=2)
    for module in (api, bound):
        monkeypatch.setattr(module, "device", lambda index: few)
    monkeypatch.setattr(bound, "current_device", lambda: None)  # the index of the CPU
    monkeypatch.setattr(bound, "map_at", map_at)
    with_emulated_maps = functools.partial(tma_arguments, encode=tensor_map)
    monkeypatch.setattr(bound, "tma_arguments", with_emulated_maps)
    monkeypatch.setattr(api, "choose", recorded)
    monkeypatch.setattr(api, "load_kernel", load)
    monkeypatch.setattr(api, "is_on_gpu", lambda x: True)
    monkeypatch.setattr(api, "LAUNCHES", BoundLaunches())
    return problems


def integers(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randint(-9, 10, (rows, columns)).to(dtype)


def assert_product(a: Tensor, b: Tensor, **options: Any) -> Tensor:
    c = gemm(a, b, **options)
    assert torch.equal(c, (a.double() @ b.double()).to(a.dtype))
    return c


def test_later_calls_of_a_kind_check_and_choose_nothing(chosen: list[GemmProblem]) -> None:
    for _ in range(3):
        assert_product(integers(5, 7), integers(7, 6), kernel=NAIVE)
    assert len(chosen) == 1
    for _ in range(3):
        out = torch.empty(5, 6)
        assert assert_product(integers(5, 7), integers(7, 6), kernel=NAIVE, out=out) is out
    assert len(chosen) == 2


@needs_compiler
def test_maps_follow_their_operands(
    chosen: list[GemmProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []
    monkeypatch.setattr(bound, "map_at", lambda m, x: moved.append(x) or map_at(m, x))
    sets = [[integers(9, 24).half(), integers(16, 24).half().T] for _ in range(2)]
    outs = [torch.empty(9, 16).half() for _ in range(2)]
    for (a, b), out in zip(2 * sets, 2 * outs, strict=True):
        assert_product(a, b, kernel=STORE, out=out)
    assert len(chosen) == 1
    assert len(moved) == 4 * 3
    assert_product(a, b, kernel=STORE, out=out)
    assert len(moved) == 4 * 3, "packed the same addresses again"
    assert_product(a, b, kernel=STORE, out=outs[0])
    assert outs[0].data_ptr() in moved[-3:]


def strided(x: Tensor) -> Tensor:
    return x.T.contiguous().T


def offset(x: Tensor) -> Tensor:
    memory = torch.empty(x.numel() + 1, dtype=x.dtype)
    return memory[1:].view(x.shape).copy_(x)


def padded(x: Tensor) -> Tensor:
    return torch.cat([x, x], 1)[:, : x.shape[1]]


@pytest.mark.parametrize(
    "change",
    [
        lambda a, b, out: (offset(a), b, out),
        lambda a, b, out: (a, offset(b), out),
        lambda a, b, out: (a, b, offset(out)),
        lambda a, b, out: (padded(a), b, out),
        lambda a, b, out: (a, strided(b), out),
        lambda a, b, out: (a, padded(b), out),
        lambda a, b, out: (a, b, padded(out)),
        lambda a, b, out: (a[1:], b, out[1:]),
        lambda a, b, out: (a, b[:, 1:], out[:, 1:]),
        lambda a, b, out: (a[:, :4], b[:4], out),
    ],
)
def test_another_kind_is_chosen_for_anew(
    chosen: list[GemmProblem], change: Callable[..., tuple[Tensor, Tensor, Tensor]]
) -> None:
    arguments = integers(8, 8), integers(8, 8), torch.empty(8, 8)
    for a, b, out in (arguments, change(*arguments), arguments):
        assert_product(a, b, out=out, kernel=NAIVE)
    assert len(chosen) == 2


def test_options_are_of_the_kind(chosen: list[GemmProblem]) -> None:
    a, b = integers(8, 8), integers(8, 8).T
    assert_product(a, b, kernel=NAIVE)
    with pytest.raises(ValueError, match="precision tf32, less than ieee"):
        gemm(a, b, kernel="mma_tf32_64x64x32_stage3")
    with pytest.raises(ValueError, match="sgemm_naive accumulates in fp32, not in fp16"):
        gemm(a, b, kernel=NAIVE, accumulate="fp16")
    assert_product(a, b, kernel=NAIVE, precision="tf32")
    assert [p.precision for p in chosen] == ["ieee", "ieee", "ieee", "tf32"]


@pytest.mark.parametrize(("arguments", "options", "error", "message"), WRONG)
def test_what_does_not_fit_is_refused_after_a_call_that_did(
    chosen: list[GemmProblem],
    arguments: Any,
    options: Any,
    error: type[Exception],
    message: str,
) -> None:
    a, b = integers(6, 4), integers(4, 5)
    gemm(a, b, kernel=NAIVE)
    gemm(a, b, out=torch.empty(6, 5), kernel=NAIVE)
    for _ in range(2):
        with pytest.raises(error, match=message):
            gemm(*arguments, **{"kernel": NAIVE, **options})


def test_memory_that_out_shares_is_refused_in_later_calls_too(chosen: list[GemmProblem]) -> None:
    memory, others = integers(16, 16), integers(16, 16)
    left, right, between = memory[4:12, :8], others[4:12, :8], memory[4:12, 8:]
    after, before = memory[8:, 4:12], memory[:8, 4:12]
    shared = [(left, "a"), (after, "a"), (before, "a"), (right, "b"), (others[:8, 4:12], "b")]
    for _ in range(2):
        assert_product(left.clone(), right, out=integers(8, 16)[:, :8], kernel=NAIVE)
        expected = left @ right
        assert torch.equal(gemm(left, right, out=between, kernel=NAIVE), expected)
        for out, name in shared:
            kept = out.clone()
            with pytest.raises(ValueError, match=f"out shares memory with {name}; give it"):
                gemm(left, right, out=out, kernel=NAIVE)
            assert torch.equal(out, kept)
    assert len(chosen) == 2, "the second time, no kernel is chosen"


def test_a_copied_operand_is_copied_every_time(chosen: list[GemmProblem]) -> None:
    a, b = strided(integers(6, 4)), integers(4, 5)
    for _ in range(2):
        assert_product(a, b, kernel=NAIVE)
        a += 1


@needs_compiler
def test_rows_that_tma_cannot_read_are_copied_every_time(chosen: list[GemmProblem]) -> None:
    a, b = integers(9, 20).half(), integers(16, 20).half().T
    for _ in range(2):
        assert_product(a, b, kernel=STORE)
        a += 1


def test_lazy_views_and_operands_with_gradients_are_read_as_torch_reads_them(
    chosen: list[GemmProblem],
) -> None:
    a, b = integers(6, 4), integers(4, 5)
    zeros = torch._efficientzerotensor((6, 4))
    for _ in range(2):
        assert_product(a, b, kernel=NAIVE)
        assert_product(torch._neg_view(a), b, kernel=NAIVE)
        assert not gemm(zeros, b, kernel=NAIVE).any()
        out = torch._neg_view(torch.empty(6, 5))
        assert torch.equal(gemm(a, b, out=out, kernel=NAIVE), a @ b)
        c = gemm(torch.nn.Parameter(a), b.clone().requires_grad_(), kernel=NAIVE)
        assert torch.equal(c, a @ b)
        assert not c.requires_grad


def test_tma_maps_no_empty_operand(chosen: list[GemmProblem]) -> None:
    a, b = integers(9, 24).half(), integers(24, 16).half()
    for _ in range(2):
        out = torch.full((9, 16), torch.nan).half()
        assert not gemm(a[:, :0], b[:0], out=out, kernel=STORE).any()
        assert gemm(a[:0], b, kernel=STORE).shape == (0, 16)
        assert gemm(a, b[:, :0], kernel=STORE).shape == (9, 0)


class Logged(Tensor):
    """A tensor whose type may mean anything."""


def test_no_launch_is_kept_of_what_may_be_more_than_a_matrix(chosen: list[GemmProblem]) -> None:
    a, b = integers(6, 4), integers(4, 5)
    for _ in range(2):
        assert torch.equal(gemm(a.as_subclass(Logged), b, kernel=NAIVE), a @ b)
        assert not gemm(a[:, :0], b[:0], kernel=NAIVE).any()
        assert gemm(a[:0], b, kernel=NAIVE).shape == (0, 5)
    assert len(chosen) == 6


def test_tensors_are_not_kept_alive(chosen: list[GemmProblem]) -> None:
    tensors = [integers(6, 4), integers(4, 5), torch.empty(6, 5)]
    assert_product(tensors[0], tensors[1], out=tensors[2], kernel=NAIVE)
    weak = [weakref.ref(x) for x in tensors]
    tensors.clear()
    gc.collect()
    assert [ref() for ref in weak] == [None] * 3


class Recorder:
    """A kernel whose launches note the first three parameters when all threads have packed."""

    parameters = PARAMETERS

    def __init__(self, threads: int) -> None:
        self.all_have_packed = threading.Barrier(threads, timeout=20)
        self.seen: dict[str, tuple[int, ...]] = {}

    def launch(self, blocks: int, arguments: Parameters) -> None:
        self.all_have_packed.wait()
        first = (arguments.block.p0, arguments.block.p1, arguments.block.p2)
        self.seen[threading.current_thread().name] = first


def test_threads_launch_on_their_own_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "current_device", lambda: None)
    kernel = Recorder(threads=2)
    launch = BoundLaunch(KERNELS[NAIVE], kernel, (1, *range(9)), MATRICES)  # type: ignore[arg-type]
    calls = {"one": (16, 32, 48), "two": (64, 80, 96)}
    threads = [threading.Thread(target=launch, args=x, name=name) for name, x in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kernel.seen == calls


def test_a_launch_is_made_on_the_device_of_its_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [1]

    class Switch:
        def __init__(self, index: Any) -> None:
            self.index = index

        def __enter__(self) -> None:
            current.append(self.index)

        def __exit__(self, *_: object) -> None:
            current.pop()

    monkeypatch.setattr(torch.cuda, "device", Switch)
    monkeypatch.setattr(bound, "current_device", lambda: current[-1])
    devices: list[Any] = []
    kernel = Recorder(threads=1)
    monkeypatch.setattr(kernel, "launch", lambda *_: devices.append(current[-1]))
    BoundLaunch(KERNELS[NAIVE], kernel, (1, *range(9)), MATRICES)(0, 0, 0)  # type: ignore[arg-type]
    assert devices == [None]
    assert current == [1]


def test_the_oldest_launches_make_room() -> None:
    launches, one = BoundLaunches(most=2), object()
    for key in "abcb":
        launches.add(key, one)  # type: ignore[arg-type]
    assert [key for key in "abc" if launches.get(key)] == ["b", "c"]


def test_a_traced_product_is_traced() -> None:
    with FakeTensorMode():
        c = gemm(torch.empty(6, 4), torch.empty(4, 5))
    assert type(c).__name__ == "FakeTensor"
    assert c.shape == (6, 5)
