"""A case of several ranks: a matrix, and operands of which every rank makes its own rows.

The rows of an operand follow from the seed, the operand's name and the number of their chunk, so a
rank, and one process that computes the whole, make the same rows without a message.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from experiments.bench.errors import ExperimentError
from experiments.bench.sources import HashedRmat, Source
from experiments.sddmm import case as sddmm_case
from experiments.sddmm.config import Config
from sddmm import SparsePattern

# Elements of a chunk of an operand, at least a row.
CHUNK = 1 << 24


@dataclass(frozen=True)
class Case:
    """A matrix on a device and the sizes of its operands, each ([heads,] rows, k) random normal.

    a has the rows of S, b_t the columns, and so have q and k of an attention. The weights of spmm,
    and the gradients of sddmm's values, are ([heads,] nnz).
    """

    matrix: str
    definition: dict[str, Any]
    pattern: SparsePattern
    k: int
    heads: int
    dtype: str
    seed: int
    device: str
    family: str = ""

    @property
    def item(self) -> int:
        """The bytes of an element of an operand."""
        torch_dtype: torch.dtype = getattr(torch, self.dtype)
        return torch_dtype.itemsize

    @property
    def lead(self) -> tuple[int, ...]:
        return () if self.heads == 1 else (self.heads,)

    def rows_of(self, name: str, begin: int, end: int) -> Tensor:
        """The rows begin .. end - 1 of an operand, ([heads,] rows, k), contiguous."""
        return self._range(name, self.k, begin, end)

    def chosen_rows(self, name: str, at: Tensor) -> Tensor:
        """Some rows of an operand, ([heads,] rows, k). at: their numbers, ascending."""
        return self._chosen(name, self.k, at)

    def weights(self, begin: int, end: int) -> Tensor:
        """The weights of the nonzeros begin .. end - 1, ([heads,] nonzeros)."""
        return self._range("weights", 1, begin, end)[..., 0]

    def chosen_weights(self, at: Tensor) -> Tensor:
        """The weights of some nonzeros, ([heads,] nonzeros). at: their numbers, ascending."""
        return self._chosen("weights", 1, at)[..., 0]

    def _range(self, name: str, width: int, begin: int, end: int) -> Tensor:
        out = self._new(end - begin, width)
        for first, chunk in self._chunks(name, width, begin, end):
            low, high = max(begin, first), min(end, first + chunk.shape[-2])
            out[..., low - begin : high - begin, :] = chunk[..., low - first : high - first, :]
        return out

    def _chosen(self, name: str, width: int, at: Tensor) -> Tensor:
        out, numbers = self._new(at.numel(), width), at.cpu()
        if at.numel() == 0:
            return out
        for first, chunk in self._chunks(name, width, int(numbers[0]), int(numbers[-1]) + 1):
            ends = torch.tensor([first, first + chunk.shape[-2]])
            low, high = torch.searchsorted(numbers, ends).tolist()
            out[..., low:high, :] = chunk[..., at[low:high].long() - first, :]
        return out

    @cached_property
    def crow(self) -> Tensor:
        """The row offsets on the CPU."""
        return self.pattern.major_indices.cpu()

    @property
    def _rows(self) -> dict[str, int]:
        """The rows of each operand."""
        m, n = self.pattern.shape
        return {"a": m, "grad_out": m, "b_t": n, "v": n, "weights": self.pattern.nnz}

    def _new(self, *sizes: int) -> Tensor:
        return torch.empty(*self.lead, *sizes, dtype=getattr(torch, self.dtype), device=self.device)

    def _chunks(self, name: str, width: int, begin: int, end: int) -> Iterator[tuple[int, Tensor]]:
        """The chunks of rows that cover begin .. end - 1: the first row of each, and its rows."""
        rows = max(1, min(self._rows[name], CHUNK // (width * self.heads)))
        for number in range(begin // rows, math.ceil(end / rows)):
            seed = zlib.crc32(f"{self.seed} {name} {number}".encode())
            generator = torch.Generator(self.device).manual_seed(seed)
            shape = (*self.lead, rows, width)
            chunk = torch.randn(shape, generator=generator, device=self.device)
            yield number * rows, chunk.to(getattr(torch, self.dtype))


def make_case(
    label: str, config: Config, device: str, identity: Mapping[str, Any] | None = None
) -> Case:
    """The case of a configuration on a device; its matrix is made there where the source can."""
    source = sddmm_case.source_of(config)
    definition = {"source": type(source).__name__, **sddmm_case.definition(source)}
    return Case(
        label, definition if identity is None else {**definition, **identity},
        _pattern(source, device), config.k, config.heads, config.dtype, config.seed, device,
        config.family,
    )  # fmt: skip


# The pattern of the last case: the cases of a study that share a matrix stand beside each other.
_last: dict[tuple[str, str], SparsePattern] = {}


def _pattern(source: Source, device: str) -> SparsePattern:
    key = (repr(source), device)
    if key not in _last:
        _last.clear()
        try:
            if isinstance(source, HashedRmat) and device.startswith("cuda"):
                crow, cols = source.on_device(device)
            else:
                matrix = source.load()
                crow, cols = (
                    torch.from_numpy(x).to(device) for x in (matrix.indptr, matrix.indices)
                )
        except ValueError as error:  # a broken file, or arguments that no matrix can satisfy
            raise ExperimentError(str(error)) from None
        size = source.size()
        pattern = SparsePattern.from_csr(crow, cols, (size.rows, size.cols))
        pattern.check()
        _last[key] = pattern
    return _last[key]
