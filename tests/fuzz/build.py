"""The objects of a case: index arrays, operands and S, each within memory that must not be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from sddmm import SparsePattern
from tests.fuzz.case import BLOCKED, COMPRESSED, Case

# What stands around indices: no row or column has it.
_NO_INDEX = 2**30
_GUARD = 37


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def positions(case: Case) -> tuple[Tensor, Tensor]:
    """Rows and columns of the nonzeros, int64, in the order in which S has them."""
    rng = np.random.default_rng([case.seed, 1])
    rows, cols = _places(case, rng)
    rows, cols = _duplicated(case, rng, rows, cols)
    keep = rng.permutation(rows.size)[: case.max_nnz]
    rows, cols = rows[keep], cols[keep]
    if case.kind in BLOCKED:
        return _blocks(case, rows, cols)
    if case.kind == "scipy_csc":
        order = np.lexsort((rows, cols) if case.order == "sorted" else (cols,))
    elif case.order == "sorted":
        order = np.lexsort((cols, rows))
    elif case.order == "columns":
        order = np.lexsort((rows,))
    else:
        order = np.arange(rows.size)
    return torch.from_numpy(rows[order]), torch.from_numpy(cols[order])


def _blocks(case: Case, rows: Any, cols: Any) -> tuple[Tensor, Tensor]:
    """Rows and columns of the nonzeros of the blocks that these positions are in, each once, or
    for each of its positions where there are to be duplicates."""
    bm, bn = case.block_m, case.block_n
    flat = rows // bm * (case.n // bn) + cols // bn
    if case.duplicates == "none":
        flat = np.unique(flat)
    flat = flat[: max(1, case.max_nnz // (bm * bn))]
    down, across = np.divmod(flat, max(1, case.n // bn))
    order = np.lexsort((across, down) if case.order == "sorted" else (down,))
    shape = (flat.size, bm, bn)
    rows = (down[order, None] * bm + np.arange(bm))[:, :, None]
    cols = (across[order, None] * bn + np.arange(bn))[:, None, :]
    flat_rows, flat_cols = (np.broadcast_to(x, shape).reshape(-1) for x in (rows, cols))
    return torch.from_numpy(flat_rows.copy()), torch.from_numpy(flat_cols.copy())


def _places(case: Case, rng: np.random.Generator) -> tuple[Any, Any]:
    """Distinct positions."""
    m, n = case.m, case.n
    none = np.empty(0, np.int64)
    if m * n == 0 or case.density == "empty":
        return none, none
    everywhere = np.arange(m * n) if m * n <= 200_000 else None
    if case.density == "one":
        flat = rng.integers(m * n, size=1)
    elif case.density == "row":
        flat = int(rng.integers(m)) * n + np.arange(n)
    elif case.density == "column":
        flat = np.arange(m) * n + int(rng.integers(n))
    elif case.density == "full" and everywhere is not None:
        flat = everywhere
    elif case.density == "diagonal":
        flat = np.arange(min(m, n)) * (n + 1)
    elif case.density == "power":
        count = max(1, int(case.filled * m * n))
        draws = rng.random((2, min(count, 2 * case.max_nnz))) ** 3
        flat = np.unique((draws[0] * m).astype(np.int64) * n + (draws[1] * n).astype(np.int64))
    elif case.density == "tiles":
        flat = _tiles(m, n, rng)
    else:
        count = min(m * n, max(1, int(case.filled * m * n)), 2 * case.max_nnz)
        flat = np.unique(rng.integers(m * n, size=count))
    return np.divmod(flat, n)


def _tiles(m: int, n: int, rng: np.random.Generator) -> Any:
    size = int(rng.choice([16, 64, 128]))
    found = []
    for _ in range(int(rng.integers(1, 4))):
        top, left = int(rng.integers(m)) // 16 * 16, int(rng.integers(n)) // 8 * 8
        block = np.arange(top, min(m, top + size))[:, None] * n
        found.append((block + np.arange(left, min(n, left + size))).ravel())
    return np.unique(np.concatenate(found))


def _duplicated(case: Case, rng: np.random.Generator, rows: Any, cols: Any) -> tuple[Any, Any]:
    count = rows.size
    if count == 0 or case.duplicates == "none":
        return rows, cols
    if case.duplicates == "some":
        extra = rng.integers(count, size=count // 3 + 1)
        picked = np.concatenate([np.arange(count), extra])
    elif case.duplicates == "one_position":
        picked = np.zeros(int(rng.integers(2, 300)), np.int64)
    else:
        most = min(case.max_nnz, case.m * case.n + case.m + 3)
        picked = rng.integers(count, size=most)
    return rows[picked], cols[picked]


def turned(case: Case, rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor]:
    """Other positions, as many, in the order that S has: the matrix turned by 180 degrees."""
    return (case.m - 1 - rows).flip(0), (case.n - 1 - cols).flip(0)


def numbers(case: Case, rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """a as (h, m, k), b_t as (h, n, k) and the values, (nnz,) or (h, nnz), of the case's dtype, on
    the CPU."""
    generator = torch.Generator().manual_seed(case.seed)
    dtype = dtype_of(case.dtype)
    heads = 1 if case.heads is None else case.heads
    a = _special(case, torch.randn(heads, case.m, case.k, generator=generator), generator, dtype)
    b_t = _special(case, torch.randn(heads, case.n, case.k, generator=generator), generator, dtype)
    lead = (heads,) if case.values_have_heads else ()
    values = torch.randn(*lead, rows.numel(), generator=generator).double()
    if case.special in ("mixed", "zeros") and values.numel():
        some = torch.randint(values.numel(), (3,), generator=generator)
        values.view(-1)[some] = torch.tensor(
            [torch.nan, torch.inf, 0.0] if case.special == "mixed" else [0.0, -0.0, 0.0],
            dtype=torch.float64,
        )
    a, b_t = _broadcast(a, case.strides_a), _broadcast(b_t, case.strides_b)
    return a.to(dtype), b_t.to(dtype), values.to(dtype)


def _special(case: Case, x: Tensor, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Numbers that break what is careless, in a few places or everywhere."""
    x = x.double()
    if case.special is None or x.numel() == 0:
        return x
    flat = x.view(-1)
    info, count = torch.finfo(dtype), flat.numel()
    few = torch.randint(count, (1 + min(5, count // 50),), generator=generator)
    sign = torch.randint(2, (few.numel(),), generator=generator).double() * 2 - 1
    if case.special == "nan":
        flat[few] = torch.nan
    elif case.special == "inf":
        flat[few] = sign * torch.inf
    elif case.special == "inf_rows":
        x[:, int(few[0]) % x.shape[1]] = torch.inf if sign[0] > 0 else -torch.inf
    elif case.special == "mixed":
        flat[few] = sign * torch.inf
        flat[few[0]] = torch.nan
    elif case.special == "subnormal":
        flat.mul_(info.smallest_normal / 8)
    elif case.special == "zeros":
        where = torch.randint(3, (count,), generator=generator)
        flat[where == 0] = 0.0
        flat[where == 1] = -0.0
    elif case.special == "large":
        flat[few] = sign * info.max / 2
    elif case.special == "wide":
        spread = torch.randint(-40, 41, (count,), generator=generator).double()
        limit = 7 if dtype == torch.float16 else 40
        flat.mul_(torch.exp2(spread * limit / 40))
    else:  # products that sum up to about the largest number
        flat.mul_(min(info.max, torch.finfo(torch.float32).max) ** 0.5 / max(1, case.k) ** 0.5)
    return x


def _broadcast(x: Tensor, strides: str) -> Tensor:
    index = [slice(0, 1) if broadcast else slice(None) for broadcast in _broadcast_dims(strides)]
    return x[tuple(index)].expand_as(x)


def _broadcast_dims(strides: str) -> tuple[bool, bool, bool]:
    rows, everything = strides == "broadcast_rows", strides == "broadcast_all"
    return everything or strides == "broadcast_heads", rows or everything, everything


def placed(x: Tensor, strides: str, device: str) -> tuple[Tensor, Tensor]:
    """A view with the numbers of x, (h, rows, k), strided as asked; and its buffer of NaN."""
    heads, rows, k = x.shape
    padded = -(-k // 8) * 8 + 8
    steps = {
        "transposed": (rows * k, 1, rows),
        "stepped": (2 * rows * k, 2 * k, 2),
        "every_second_row": (2 * rows * (k + 3), 2 * (k + 3), 1),
        "padded": (rows * padded, padded, 1),
        "broadcast_rows": (k, 0, 1),
        "broadcast_all": (0, 0, 0),
        "broadcast_heads": (0, k, 1),
        "heads_inner": (k, heads * k, 1),
    }.get(strides, (rows * k, k, 1))
    offset = {"offset": 48, "misaligned": 33}.get(strides, 32)
    span = 0
    if x.numel():
        span = 1 + sum((size - 1) * step for size, step in zip(x.shape, steps, strict=True))
    buffer = torch.full((offset + span + _GUARD,), torch.nan, dtype=x.dtype, device=device)
    view = buffer.as_strided(x.shape, steps, offset)
    index = tuple(slice(0, 1) if step == 0 else slice(None) for step in steps)
    negated = strides == "negated"
    view[index].copy_(-x[index] if negated else x[index])
    return (torch._neg_view(view) if negated else view), buffer


def guarded(x: Tensor, step: int, device: str) -> tuple[Tensor, Tensor]:
    """Numbers within a buffer of what no number of them is, `step` apart; and the buffer."""
    around = torch.nan if x.is_floating_point() else _NO_INDEX
    buffer = torch.full((_GUARD + step * x.numel() + _GUARD,), around, dtype=x.dtype, device=device)
    view = buffer[_GUARD : _GUARD + step * x.numel() : step].unflatten(0, x.shape)
    view.copy_(x)
    return view, buffer


def stored(case: Case, rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor]:
    """The two index arrays as S's kind stores them: rows or their starts, columns (CSC: rows; BSR:
    of blocks)."""
    major, minor, groups = rows, cols, case.m
    if case.kind in BLOCKED:
        first = slice(None, None, case.block_m * case.block_n)
        major, minor = rows[first] // case.block_m, cols[first] // case.block_n
        groups = case.m // case.block_m
    if case.kind == "scipy_csc":
        major, minor, groups = cols, rows, case.n
    if case.kind in COMPRESSED:
        counts = torch.bincount(major, minlength=groups)
        major = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    dtype = dtype_of(case.index_dtype)
    return major.to(dtype), minor.to(dtype)


@dataclass
class Indices:
    """Two index arrays in memory of their own; for torch COO the rows of one tensor, `both`."""

    major: Tensor
    minor: Tensor
    both: Tensor | None = None

    @classmethod
    def of(cls, case: Case, rows: Tensor, cols: Tensor) -> Indices:
        major, minor = stored(case, rows, cols)
        step = (
            1
            if case.kind in ("torch_csr", "torch_bsr", "scipy_csr", "scipy_csc")
            else case.index_strides
        )
        if case.kind in ("torch_coo", "torch_coo_uncoalesced"):
            both = torch.stack([major, minor]).to(case.on)
            return cls(both[0], both[1], both)
        first, second = (guarded(x, step, case.on)[0] for x in (major, minor))
        return cls(first, second)

    def write(self, major: Tensor, minor: Tensor) -> None:
        self.major.copy_(major)
        self.minor.copy_(minor)

    def anew(self) -> Indices:
        """Other tensor objects over the same memory, which know nothing of each other."""

        def alias(x: Tensor) -> Tensor:
            return torch.from_numpy(x.numpy()) if x.device.type == "cpu" else torch.from_dlpack(x)

        if self.both is not None:
            both = alias(self.both)
            return Indices(both[0], both[1], both)
        return Indices(alias(self.major), alias(self.minor))


def sparse(case: Case, indices: Indices, values: Tensor) -> Any:
    """S, of the case's kind, over these index arrays and values."""
    shape, major, minor = (case.m, case.n), indices.major, indices.minor
    if case.kind == "torch_csr":
        return torch.sparse_csr_tensor(major, minor, values, shape, check_invariants=False)
    if case.kind in ("torch_coo", "torch_coo_uncoalesced"):
        return torch.sparse_coo_tensor(
            indices.both, values, shape, is_coalesced=case.kind == "torch_coo" or None,
            check_invariants=False,
        )  # fmt: skip
    if case.kind == "torch_bsr":
        blocks = values.view(-1, case.block_m, case.block_n)
        return torch.sparse_bsr_tensor(major, minor, blocks, shape, check_invariants=False)
    if case.kind == "pattern_bsr":
        return SparsePattern.from_bsr(major, minor, (case.block_m, case.block_n), shape)
    if case.kind == "pattern_csr":
        return SparsePattern.from_csr(major, minor, shape)
    if case.kind == "pattern_coo":
        return SparsePattern.from_coo(major, minor, shape)
    if case.kind == "tuple":
        return major, minor, shape
    arrays = major.numpy(), minor.numpy()
    if case.kind == "tuple_numpy":
        return (*arrays, shape)
    if case.kind == "pattern_numpy":
        return SparsePattern.from_coo(*arrays, shape)
    make = getattr(scipy.sparse, f"{case.kind[6:]}_{'array' if case.seed % 2 else 'matrix'}")
    data = values.detach().numpy()
    if case.kind == "scipy_coo":
        return make((data, arrays), shape=shape)
    return make((data, arrays[1], arrays[0]), shape=shape)
