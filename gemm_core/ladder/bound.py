"""Launches of gemm bound to all that a choice depends on: only addresses change between calls."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gemm_core.ladder.spec import GemmProblem, KernelSpec
from gemm_core.ladder.tma_arguments import tma_arguments
from gemm_core.runtime.addressing import Rows
from gemm_core.runtime.device import current_device, device
from gemm_core.runtime.launch import Kernel, Parameters
from gemm_core.runtime.tensor_map import NO_MAP, map_at


class _Packed(Parameters):
    """Packed parameters, and the addresses of a, b and c that are packed."""

    addresses: tuple[int, ...] = ()


class BoundLaunch:
    """A kernel's launch on any operands that differ from given ones in their addresses alone.

    arguments: the length of the grid and the kernel's parameters for the given operands a, b and
    C. m, n, dtype, device: those of C. Keeps no tensor alive. Threads may share it: each packs
    parameters into memory of its own, as the driver reads them without Python's lock.
    """

    def __init__(
        self,
        spec: KernelSpec,
        kernel: Kernel,
        arguments: Sequence[Any],
        operands: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        out = operands[2]
        self._rows = tuple(Rows.of(x) for x in operands)
        self._extents = tuple(rows.extent for rows in self._rows)
        (self.m, self.n), self.dtype, self.device = out.shape, out.dtype, out.device
        self._index, self._launch = out.device.index, kernel.launch
        self._blocks, *self._values = arguments
        self._has_maps = spec.tma is not None
        self._packed = _Packed(kernel.parameters)

    def __call__(self, a: int, b: int, c: int) -> None:
        """Launch on operands at these addresses. Raises ValueError if C shares memory with one."""
        if self._index != current_device():
            with torch.cuda.device(self._index):  # the driver launches in the current context
                return self(a, b, c)
        packed, addresses = self._packed, (a, b, c)
        if packed.addresses != addresses:
            if self._may_share(a, b, c):
                check_apart(self._rows, addresses)
            first = self._maps_at(a, b, c) if self._has_maps else addresses
            packed.pack(*first, *self._values[len(first) :])
            packed.addresses = addresses
        self._launch(self._blocks, packed)

    def _may_share(self, a: int, b: int, c: int) -> bool:
        """Whether C lies among the elements of a or of b, which few calls ask for."""
        size_a, size_b, size_c = self._extents
        return -size_c < c - a < size_a or -size_c < c - b < size_b

    def _maps_at(self, a: int, b: int, c: int) -> tuple[bytes | int, ...]:
        """The first values of TmaParameters: the maps of a, b and c, and the address of c."""
        map_a, map_b, map_c = self._values[:3]
        map_c = map_c if map_c == NO_MAP else map_at(map_c, c)
        return map_at(map_a, a), map_at(map_b, b), map_c, c


def check_apart(rows: Sequence[Rows], addresses: Sequence[int]) -> None:
    """Raise ValueError if C, the last of a, b and C, shares memory with another."""
    out, address = rows[2], addresses[2]
    for name, operand, place in zip("ab", rows, addresses, strict=False):
        if out.meet(address, operand, place):
            raise ValueError(f"out shares memory with {name}; give it memory of its own")


class BoundLaunches:
    """Bound launches by all that they depend on; the oldest make room for new ones.

    Which was used last is not tracked, as that would cost time in every call.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most, self._one_adds = most, threading.Lock()
        self._launches: dict[Any, BoundLaunch] = {}
        self.get = self._launches.get

    def add(self, key: Any, launch: BoundLaunch) -> None:
        with self._one_adds:
            self._launches[key] = launch
            while len(self._launches) > self._most:
                del self._launches[next(iter(self._launches))]


def launch_arguments(
    spec: KernelSpec, problem: GemmProblem, a: Tensor, b: Tensor, out: Tensor
) -> tuple[Any, ...]:
    """The length of the grid and a kernel's parameters, for operands that it can read."""
    blocks = spec.grid(problem, device(a.device.index))
    if spec.tma is not None:
        return (blocks, *tma_arguments(spec, problem, a, b, out))
    pitch_b = b.stride(0) if problem.b_layout == "kn" else b.stride(1)
    return (
        blocks, a.data_ptr(), b.data_ptr(), out.data_ptr(), problem.m, problem.n, problem.k,
        a.stride(0), pitch_b, out.stride(0),
    )  # fmt: skip
