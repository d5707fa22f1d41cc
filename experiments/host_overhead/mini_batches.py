"""First calls on sampled mini-batches, each of which has indices and sizes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

import sddmm
from experiments.bench.methods import Run
from experiments.bench.timing import first_calls_ms
from sddmm.testing import assert_close, assert_spmm_close

# The most nodes and edges of a batch, how much smaller the least is, and the size of a feature.
NODES, EDGES, SMALLER, K = 20_000, 300_000, 0.1, 64
# Batches of ever new sizes that each method has seen before it is timed, as in a training run.
_SEEN_BEFORE = 100
_TIMEOUT_S = 60.0


def mini_batches_us(calls: int) -> dict[str, list[float]]:
    """Wall times in us of whole first calls in float32, by method; verified against float64 first.
    Neither `sddmm` nor torch's function multiplies by S's values.

    S is a torch CSR tensor over indices that nothing has seen, of one size or of a new size each
    time. calls: how many of each method are timed.
    """
    methods = {
        "sddmm(S, a, b, scale=False)": _sddmm,
        "torch.sparse.sampled_addmm(S, a, b, beta=0)": _sampled_addmm,
        "spmm(S, b)": lambda S, a, b: sddmm.spmm(S, b),
        "S @ b": lambda S, a, b: S @ b,
    }
    verify()
    setups = {
        f"{name}, {sizes}": _setup(method, sizes != "one size")
        for name, method in methods.items()
        for sizes in ("one size", "new sizes")
    }
    return first_calls_us(setups, _SEEN_BEFORE, calls)


def first_calls_us(
    setups: Mapping[str, Callable[[], Run]], seen_before: int, calls: int
) -> dict[str, list[float]]:
    """Wall times in us of whole calls on mini-batches, by method, after `seen_before` others of
    each; raises the error of a method that fails.

    setups: as of `first_calls_ms`. calls: how many of each method are timed.
    """
    for setup in setups.values():
        for _ in range(seen_before):
            setup()()
    samples, errors = first_calls_ms(setups, _TIMEOUT_S, "cuda", calls)
    for error in errors.values():
        raise error
    return {name: [1e3 * ms for ms in own] for name, own in samples.items()}


def smaller(most: int, generator: torch.Generator) -> int:
    """A random size of a batch: at most so large, and smaller by less than SMALLER of that."""
    return most - int(torch.randint(int(SMALLER * most), (), generator=generator))


def verify(device: str = "cuda") -> None:
    """Raise AssertionError unless all methods are right on a batch."""
    S, a, b = next(batches(True, device))
    for samples in (_sddmm(S, a, b), _sampled_addmm(S, a, b)):
        assert_close(samples.values(), S, a, b.mT, scale=False)
    for product in (sddmm.spmm(S, b), S @ b):
        assert_spmm_close(product, S, b)


def batches(new_sizes: bool, device: str = "cuda") -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Mini-batches: S (m, n) with random edges, and the features a (m, K), b (n, K) of its ends."""
    generator = torch.Generator(device).manual_seed(0)
    sizes = torch.Generator().manual_seed(0)
    while True:
        m, n, edges = (
            smaller(most, sizes) if new_sizes else most for most in (NODES, NODES, EDGES)
        )
        flat = torch.randint(m * n, (edges,), generator=generator, device=device).sort().values
        crow = torch.searchsorted(flat, torch.arange(m + 1, device=device) * n).to(torch.int32)
        cols = (flat % n).to(torch.int32)
        a, b, values = (
            torch.randn(shape, generator=generator, device=device)
            for shape in ((m, K), (n, K), (edges,))
        )
        S = torch.sparse_csr_tensor(crow, cols, values, (m, n), check_invariants=False)
        yield S, a, b


def _setup(method: Callable[..., object], new_sizes: bool) -> Callable[[], Run]:
    source = batches(new_sizes)

    def setup() -> Run:
        sddmm.clear_cache()  # torch may give a batch the memory of an earlier one
        batch = next(source)
        return lambda: method(*batch)

    return setup


def _sddmm(S: Tensor, a: Tensor, b: Tensor) -> Tensor:
    result: Tensor = sddmm.sddmm(S, a, b.mT, scale=False)
    return result


def _sampled_addmm(S: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.sparse.sampled_addmm(S, a, b.mT, beta=0.0)
