"""Training steps on sampled mini-batches: edges in any order, which nothing has seen before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import sddmm
from experiments.bench.methods import Run
from experiments.host_overhead.mini_batches import K, first_calls_us, smaller
from sddmm import SparsePattern
from sddmm.testing import (
    assert_attention_close,
    assert_attention_gradients_close,
    assert_spmm_close,
)

# The most nodes and edges of a batch.
SIZES = ((20_000, 300_000), (2_000, 30_000))
# Batches of ever new sizes that each method has seen before it is timed, as in a training run.
_SEEN_BEFORE = 50


class Batch(NamedTuple):
    """edges: (2, edges) int64, targets and sources, in any order; weights: (edges,), of a graph
    layer, which learns none. q, k, v: (nodes, K), features that require gradients."""

    edges: Tensor
    weights: Tensor
    q: Tensor
    k: Tensor
    v: Tensor


Step = Callable[[Batch], Tensor]
"""The forward of a layer: from a batch to its output, (nodes, K)."""


def mini_batch_steps_us(calls: int) -> dict[str, list[float]]:
    """Wall times in us of forward and backward on a new mini-batch in float32, by method and size;
    the outputs and the gradients of all are verified against float64 first.

    The methods of torch are written here from the operations that graph libraries describe. calls:
    how many of each method are timed.
    """
    verify()
    setups = {
        f"{name}, {edges:,} edges": _setup(step, nodes, edges)
        for nodes, edges in SIZES
        for name, step in (*ATTENTION.items(), *PRODUCTS.items())
    }
    return first_calls_us(setups, _SEEN_BEFORE, calls)


def _attend(batch: Batch) -> Tensor:
    pattern = _pattern(batch)
    return sddmm.sparse_attention(pattern, batch.q, batch.k, batch.v)


def _attend_by_parts(batch: Batch) -> Tensor:
    pattern = _pattern(batch)
    scores = sddmm.sddmm(pattern, batch.q, batch.k.mT, alpha=K**-0.5)
    return sddmm.spmm(pattern, batch.v, values=sddmm.softmax(pattern, scores))


def _attend_by_gathering(batch: Batch) -> Tensor:
    to, source = batch.edges
    nodes = batch.q.shape[0]
    scores = (batch.q[to] * batch.k[source]).sum(-1) * K**-0.5
    largest = torch.full((nodes,), -torch.inf, device=to.device)
    largest = largest.scatter_reduce(0, to, scores.detach(), "amax")
    powers = (scores - largest[to]).exp()
    shares = powers / torch.zeros_like(largest).index_add(0, to, powers)[to]
    return torch.zeros_like(batch.q).index_add(0, to, shares[:, None] * batch.v[source])


def _multiply(batch: Batch) -> Tensor:
    return sddmm.spmm(_pattern(batch), batch.v, values=batch.weights)


def _multiply_by_gathering(batch: Batch) -> Tensor:
    to, source = batch.edges
    return torch.zeros_like(batch.v).index_add(0, to, batch.weights[:, None] * batch.v[source])


def _multiply_coo(batch: Batch) -> Tensor:
    nodes = batch.v.shape[0]
    matrix = torch.sparse_coo_tensor(
        batch.edges, batch.weights, (nodes, nodes), check_invariants=False
    )
    return torch.sparse.mm(matrix, batch.v)


def _pattern(batch: Batch) -> SparsePattern:
    nodes = batch.q.shape[0]
    return SparsePattern.from_coo(batch.edges[0], batch.edges[1], (nodes, nodes))


ATTENTION: dict[str, Step] = {
    "sparse_attention(S, q, k, v)": _attend,
    "sddmm, softmax, spmm": _attend_by_parts,
    "torch: gather, softmax, index_add": _attend_by_gathering,
}
PRODUCTS: dict[str, Step] = {
    "spmm(S, x, values=w)": _multiply,
    "torch: gather, index_add": _multiply_by_gathering,
    "torch.sparse.mm(coo, x)": _multiply_coo,
}


def verify(device: str = "cuda") -> None:
    """Raise AssertionError unless the outputs and the gradients of all methods are right."""
    nodes, edges = SIZES[-1]
    batch = next(batches(nodes, edges, device))
    pattern = _pattern(batch)
    ones = torch.ones_like(batch.q)
    q, k, v = (x.detach() for x in (batch.q, batch.k, batch.v))
    for step in ATTENTION.values():
        out = step(batch)
        gradients = torch.autograd.grad(out, (batch.q, batch.k, batch.v), ones)
        assert_attention_close(out.detach(), pattern, q, k, v)
        assert_attention_gradients_close(gradients, pattern, q, k, v, ones)
    for step in PRODUCTS.values():
        out = step(batch)
        (gradient,) = torch.autograd.grad(out, batch.v, ones)
        assert_spmm_close(out.detach(), pattern, v, values=batch.weights)
        assert_spmm_close(gradient, pattern, ones, values=batch.weights, transpose=True)


def batches(nodes: int, edges: int, device: str = "cuda") -> Iterator[Batch]:
    """Mini-batches of random edges, each smaller than these sizes by a share of its own."""
    generator = torch.Generator(device).manual_seed(0)
    sizes = torch.Generator().manual_seed(0)
    while True:
        n, e = smaller(nodes, sizes), smaller(edges, sizes)
        indices = torch.randint(n, (2, e), generator=generator, device=device)
        weights = torch.randn(e, generator=generator, device=device)
        q, k, v = torch.randn(3, n, K, generator=generator, device=device)
        yield Batch(indices, weights, *(x.clone().requires_grad_() for x in (q, k, v)))


def _setup(step: Step, nodes: int, edges: int) -> Callable[[], Run]:
    source = batches(nodes, edges)

    def setup() -> Run:
        batch = next(source)
        return lambda: step(batch).sum().backward()

    return setup
