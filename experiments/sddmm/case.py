"""A case is one pattern and one pair of operands, the same for every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sddmm
from experiments.bench.environment import available_memory
from experiments.bench.errors import ExperimentError
from experiments.bench.sources import Generated, Source, Uniform
from experiments.sddmm.config import Config
from sddmm.backends.cuda.backend import CudaBackend

# Bytes of a nonzero at the peak of a run: generation, float64 reference and bound, two results.
_BYTES_PER_NONZERO = 64


@dataclass(frozen=True)
class Case:
    """SDDMM of `pattern` (CSR, columns sorted) with a (m, k) and b (k, n), random normal.

    b is the transpose of a contiguous (n, k) tensor, the layout that every method may rely on. With
    several heads, a is (heads, m, k) and b (heads, k, n). values: (nnz,), random normal and of the
    operands' dtype, where samples are multiplied by them. family: the class of patterns that the
    matrix belongs to, for reports.
    """

    matrix: str
    definition: dict[str, Any]
    pattern: sddmm.SparsePattern
    a: Tensor
    b: Tensor
    dtype: str
    seed: int
    device: str
    family: str = ""
    values: Tensor | None = None

    @property
    def m(self) -> int:
        return self.pattern.shape[0]

    @property
    def n(self) -> int:
        return self.pattern.shape[1]

    @property
    def k(self) -> int:
        return self.a.shape[-1]

    @property
    def heads(self) -> int:
        return self.a.shape[0] if self.a.dim() == 3 else 1

    @property
    def nnz(self) -> int:
        return self.pattern.nnz

    @property
    def out_dtype(self) -> torch.dtype:
        """Half types give float32 values, as tensor cores do."""
        return torch.promote_types(self.a.dtype, torch.float32)

    def one_head(self) -> list[Case]:
        """The case of each head, for methods that compute one at a time."""
        if self.a.dim() == 2:
            return [self]
        return [replace(self, a=a, b=b) for a, b in zip(self.a, self.b, strict=True)]

    def with_unseen_indices(self) -> Case:
        """The same case over new copies of the index arrays, for which nothing is cached."""
        return replace(self, pattern=self.pattern.clone())

    @cached_property
    def numpy(self) -> NumpyCase:
        """The same data for methods that work on numpy arrays; shares memory."""
        crow, cols, rows = (
            x.numpy()
            for x in (self.pattern.major_indices, self.pattern.col_indices, self.pattern.row_ids)
        )
        return NumpyCase(crow, cols, rows, self.a.numpy(), self.b.mT.numpy())


@dataclass(frozen=True)
class NumpyCase:
    """crow (m + 1,), cols and rows (nnz,), a (m, k) and b_t (n, k), C-contiguous."""

    crow: np.ndarray
    cols: np.ndarray
    rows: np.ndarray
    a: np.ndarray
    b_t: np.ndarray


def source_of(config: Config) -> Source:
    """The matrix source with the sparsity of the run."""
    source: Source = config.matrix
    if config.sparsity is None:
        return source
    if not isinstance(source, Uniform) or source.nnz is not None:
        raise ExperimentError(
            f"sparsity={config.sparsity} applies to uniform matrices given by sparsity only; this "
            f"matrix has its own number of nonzeros"
        )
    return Uniform(**{**asdict(source), "sparsity": config.sparsity})


def device_of(config: Config) -> str:
    """cpu or cuda; "auto" takes the GPU where our own kernels run on it."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ExperimentError("device=cuda, but torch sees no CUDA device; choose device=cpu")
    if config.device == "auto":
        return "cuda" if CudaBackend().available() is None else "cpu"
    return config.device


def refuse_too_large(name: str, source: Source, config: Config) -> None:
    """Raise ExperimentError for a matrix that memory cannot hold, before it is generated."""
    rows, cols, nnz = source.size()
    itemsize = torch.finfo(getattr(torch, config.dtype)).bits // 8
    operands = 2 * (rows + cols) * config.k * itemsize * config.heads
    needed = (nnz or 0) * _BYTES_PER_NONZERO + operands
    available = available_memory()
    if needed > available:
        raise ExperimentError(
            f"matrix {name} ({rows}x{cols}, {nnz} nonzeros) with k={config.k} needs {needed} bytes "
            f"({needed / 1e9:.1f} GB) of memory, {available / 1e9:.1f} GB are available; choose a "
            f"smaller matrix, a higher sparsity or a smaller k"
        )


def make_case(name: str, config: Config, identity: Mapping[str, Any] | None = None) -> Case:
    """Load or generate the matrix and draw the operands.

    identity: the definition of the matrix, or all of it but a path, if it is computed already.
    """
    source = source_of(config)
    device = device_of(config)
    try:
        refuse_too_large(name, source, config)
        pattern = _pattern_of(source, device)
    except ValueError as error:  # a broken file, or arguments that no matrix can satisfy
        raise ExperimentError(str(error)) from None
    dtype = getattr(torch, config.dtype)
    generator = torch.Generator(device).manual_seed(config.seed)
    heads = () if config.heads == 1 else (config.heads,)
    a, b_t = (
        torch.randn(*heads, size, config.k, generator=generator, device=device).to(dtype)
        for size in pattern.shape
    )
    values = None
    if config.scaled:
        values = torch.randn(pattern.nnz, generator=generator, device=device).to(dtype)
    return Case(
        matrix=name,
        definition=definition(source)
        if identity is None
        else {"source": type(source).__name__, **asdict(source), **identity},
        pattern=pattern,
        a=a,
        b=b_t.mT,
        dtype=config.dtype,
        seed=config.seed,
        device=device,
        family=config.family,
        values=values,
    )


# The pattern of the last case: the cases of a study that share a matrix stand beside each other.
_last_pattern: dict[tuple[str, str], sddmm.SparsePattern] = {}


def _pattern_of(source: Source, device: str) -> sddmm.SparsePattern:
    """The pattern of the matrix, checked; a generated one may be that of the last case."""
    key = (repr(source), device)
    if key in _last_pattern:
        return _last_pattern[key]
    _last_pattern.clear()  # before the next is loaded, as both may not fit
    matrix = source.load()
    pattern = sddmm.SparsePattern.from_csr(
        torch.from_numpy(matrix.indptr).to(device),
        torch.from_numpy(matrix.indices).to(device),
        matrix.shape,
    )
    pattern.check()
    if isinstance(source, Generated):
        _last_pattern[key] = pattern
    return pattern


def definition(source: Source) -> dict[str, Any]:
    """The definition of a matrix for the record and its key."""
    try:
        return source.definition()
    except ValueError as error:  # a file that is absent or cannot be read
        raise ExperimentError(str(error)) from None
