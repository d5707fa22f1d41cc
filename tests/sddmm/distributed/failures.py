"""Wrong calls: every rank raises one line that names what is wrong, and the next call works."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import sddmm
from sddmm.distributed import DistributedError, DistributedPattern
from sddmm.distributed.blocks import WAYS
from tests.sddmm.distributed.cases import Case, divided, here, part, skewed
from tests.sddmm.distributed.host_memory import shared_memory


def require_raises(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind) as raised:
        call()
    line = str(raised.value)
    assert raised.type is kind, f"{raised.type}: {line}"
    assert words in line, f"{words!r} is not in {line!r}"
    assert len(line.splitlines()) == 1, line


def on(rank: int) -> bool:
    return dist.get_rank() == rank


def of_one_rank(case: Case) -> None:
    """The others may have begun to compute; the error is that of the call, where nothing travels
    too, and not of the next one."""
    S, a, b = case.S, case.local_a, case.local_b
    kind = TypeError if on(1) else DistributedError
    wrong = (a.tolist() if on(1) else a), b
    require_raises(kind, "a must be a torch tensor", lambda: sddmm.sddmm(S, *wrong))
    require_raises(
        ValueError, "ranks differ in alpha", lambda: sddmm.sddmm(S, a, b, alpha=1.0 + on(1))
    )
    k = 5 + on(1)
    require_raises(ValueError, "differ in k", lambda: sddmm.plan(S, k=k, dtype=torch.float64))
    dense, w = b.mT, case.weights[case.own]
    require_raises(
        ValueError, "differ in alpha", lambda: sddmm.spmm(S, dense, values=w, alpha=1.0 + on(1))
    )
    require_raises(
        ValueError,
        "ranks differ in the call",
        lambda: sddmm.spmm(S, dense, values=w) if on(1) else sddmm.sddmm(S, a, b),
    )
    for _ in range(3):
        expected = sddmm.sddmm(case.whole, case.a, case.b)[case.own]
        torch.testing.assert_close(sddmm.sddmm(S, a, b), expected)
        expected = sddmm.spmm(case.whole, case.b.mT, values=case.weights)[S.rows]
        torch.testing.assert_close(sddmm.spmm(S, dense, values=w), expected)


def of_arguments() -> None:
    case = divided(skewed(20, 20, 100), [0, 8, 20], way="ring")
    S, a, b = case.S, case.local_a, case.local_b
    w = case.weights[case.own]
    short = "rank 1 holds rows 8..20 of S, so a must have 12 rows here; got a 11x5"
    wrong_a = a[:-1] if on(1) else a
    if on(1):
        require_raises(ValueError, short, lambda: sddmm.sddmm(S, wrong_a, b))
    else:
        told = f"sddmm: rank 1 raised ValueError: {short}"
        require_raises(DistributedError, told, lambda: sddmm.sddmm(S, wrong_a, b))
    half = (a.half(), b.half()) if on(1) else (a, b)
    differ = "ranks differ in dtype: rank 0 has torch.float64, rank 1 has torch.float16"
    require_raises(ValueError, differ, lambda: sddmm.sddmm(S, *half))
    k = a[:, :3], b[:3]
    differ = "ranks differ in k: rank 0 has 5, rank 1 has 3"
    require_raises(ValueError, differ, lambda: sddmm.sddmm(S, *(k if on(1) else (a, b))))
    require_raises(
        ValueError,
        "ranks differ in whether a requires grad: rank 0 has False, rank 1 has True",
        lambda: sddmm.sddmm(S, a.clone().requires_grad_(on(1)), b),
    )
    require_raises(
        ValueError,
        "ranks differ in the call: rank 0 has sddmm, rank 1 has spmm",
        lambda: sddmm.spmm(S, b.mT, values=w) if on(1) else sddmm.sddmm(S, a, b),
    )
    require_raises(ValueError, "S must have values", lambda: sddmm.sampled_addmm(S, a, b))
    numpy_a = a.cpu().numpy()
    require_raises(TypeError, "a must be a torch tensor", lambda: sddmm.sddmm(S, numpy_a, b))
    dense_words = f"so dense must be ([h,] {case.local_b.shape[1]}, d) here"
    require_raises(ValueError, dense_words, lambda: sddmm.spmm(S, b, values=w))
    share = 0.5 if on(1) else 0.25
    words = "ranks differ in dropout_p: rank 0 has 0.25, rank 1 has 0.5"
    require_raises(
        ValueError, words, lambda: sddmm.sparse_attention(S, a, b.mT, b.mT, dropout_p=share)
    )
    words = f"so v must be ([h,] {S.columns.stop - S.columns.start}, d) here"
    require_raises(ValueError, words, lambda: sddmm.sparse_attention(S, a, b.mT, b))
    words = f"values must have one entry per nonzero of this rank, ({S.nnz},)"
    require_raises(ValueError, words, lambda: sddmm.spmm(S, b.mT, values=w[:-1]))
    plan = sddmm.plan(S, k=5, dtype=torch.float64)
    require_raises(ValueError, "the plan was made for k=5", lambda: plan.run(*k))
    rows = part(case.whole, S.rows.start, S.rows.stop)
    adds = "the ranks hold 8 + 12 = 20 rows, but S has 21"
    require_raises(
        ValueError, adds, lambda: DistributedPattern.from_csr(*rows, (21, 20), columns=10)
    )
    adds = "the ranks hold 7 + 7 = 14 columns, but S has 20"
    require_raises(
        ValueError, adds, lambda: DistributedPattern.from_csr(*rows, (20, 20), columns=7)
    )
    shapes = "ranks differ in shape: rank 0 has (20, 20), rank 1 has (20, 24)"
    shape = 20, 24 if on(1) else 20
    require_raises(ValueError, shapes, lambda: DistributedPattern.from_csr(*rows, shape))
    far = rows[0], rows[1] + 20 * on(1)
    kind = ValueError if on(1) else DistributedError
    require_raises(kind, "col_indices", lambda: DistributedPattern.from_csr(*far, (20, 20)))
    ways = "way must be one of ring, rows, slices, row_slices or None, got 'star'"
    require_raises(
        ValueError, ways, lambda: DistributedPattern.from_csr(*rows, (20, 20), way="star")
    )
    sources = "src must be one of the ranks [0, 1], got 2"
    require_raises(ValueError, sources, lambda: DistributedPattern.scatter(None, src=2))

    def fails(begin: int, end: int) -> tuple[Any, Any]:
        if on(1):
            raise OSError("no such file")
        return part(case.whole, begin, end)

    kind = OSError if on(1) else DistributedError
    require_raises(kind, "no such file", lambda: DistributedPattern.from_rows(fails, (20, 20)))
    expected = sddmm.sddmm(case.whole, case.a, case.b)[case.own]
    torch.testing.assert_close(sddmm.sddmm(S, a, b), expected)


def of_a_computation() -> None:
    """What fails on one rank, when rows are on their way, spoils no later call unseen."""
    group = dist.new_group([0, 1])
    rows = part(skewed(6, 6, 20), 3 * dist.get_rank(), 3 * dist.get_rank() + 3)
    S = DistributedPattern.from_csr(*rows, (6, 6), group=group, way="ring")
    x, w = torch.ones(3, 3, device=here()), torch.ones(S.nnz, device=here())
    after_the_first = [torch.zeros(3, 3, device=here()), MemoryError("too much")]
    with mock.patch("sddmm.distributed.operators.product", side_effect=after_the_first):
        if on(1):
            require_raises(MemoryError, "too much", lambda: sddmm.spmm(S, x, values=w))
    if on(0):
        sddmm.spmm(S, x, values=w)
    words = "spmm failed on rank 1 before; its rows may still be on their way"
    require_raises(DistributedError, words, lambda: sddmm.sddmm(S, x, x.mT))
    make = DistributedPattern.from_csr
    require_raises(DistributedError, words, lambda: make(*rows, (6, 6), group=group))
    dist.barrier()


def of_a_first_panel() -> None:
    """What fails before the ranks have told each other anything raises on all, and does no harm."""
    case = divided(skewed(20, 20, 100), [0, 8, 20], way="ring")
    S, b, w = case.S, case.local_b.mT, case.weights[case.own]
    sddmm.spmm(S, b, values=w)  # for whose rows all ranks make room, when they have agreed

    def behind_now(device: torch.device, start: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: start()

    with mock.patch("sddmm.distributed.travel.behind_now", behind_now):
        with mock.patch("sddmm.distributed.operators.product", side_effect=MemoryError("too much")):
            if on(1):
                require_raises(MemoryError, "too much", lambda: sddmm.spmm(S, b, values=w))
        if on(0):
            told = "spmm: rank 1 raised MemoryError: too much"
            require_raises(DistributedError, told, lambda: sddmm.spmm(S, b, values=w))
    expected = sddmm.spmm(case.whole, case.b.mT, values=case.weights)[S.rows]
    torch.testing.assert_close(sddmm.spmm(S, b, values=w), expected)


def of_a_preparation() -> None:
    """Whatever a product is for the first time: its rows, and the room that is made for them."""
    for way in WAYS:
        case = divided(skewed(20, 20, 100), [0, 8, 20], way=way)
        for k in (3, 50):
            x = torch.ones(case.local_b.shape[1], k, dtype=torch.float64, device=here())
            w = case.weights[case.own]
            multiply = partial(sddmm.spmm, case.S, x, values=w)
            fails = mock.Mock(side_effect=MemoryError("too much"))
            names = ("sliced_products", "operators") if on(1) else ()
            with ExitStack() as stack:
                for name in names:
                    patched = mock.patch(f"sddmm.distributed.{name}.find_or_prepare", fails)
                    stack.enter_context(patched)
                kind = MemoryError if on(1) else DistributedError
                require_raises(kind, "too much", multiply)
            whole = torch.ones(20, k, dtype=torch.float64, device=here())
            expected = sddmm.spmm(case.whole, whole, values=case.weights)[case.S.rows]
            torch.testing.assert_close(multiply(), expected)


def of_ranks_that_share_memory() -> None:
    """A rank that fails holds up none that writes into its memory. On GPUs all others do so."""
    checks = of_a_computation, of_a_first_panel, of_a_preparation
    for check in checks if here().type == "cpu" else ():
        with shared_memory():
            check()


def of_a_rank_that_does_not_call() -> None:
    """Run last: the messages of the call that never came stay in the group of its own."""
    group = dist.new_group([0, 1])
    dist.barrier()  # so that no rank is late for what follows
    rows = part(skewed(4, 4, 9), 2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    S = DistributedPattern.from_csr(*rows, (4, 4), group=group, timeout_s=4)
    x = torch.ones(2, 3, device=here())
    if on(0):
        begin = time.monotonic()
        late = "rank 1 did not call within 4 s"
        require_raises(DistributedError, late, lambda: sddmm.sddmm(S, x, x.mT))
        assert 3.5 < time.monotonic() - begin < 60
    dist.barrier()


def of_meshes() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    rank = dist.get_rank()
    rows = part(skewed(8, 8, 30), 2 * rank, 2 * rank + 2)
    meshes = [init_device_mesh(here().type, shape) for shape in ((4,), (2, 2), (2, 2, 1))]
    differ = "ranks differ in mesh: rank 0 has 4x1 of ranks [0, 1, 2, 3], rank 1 has 2x2"
    mesh = meshes[0] if rank == 0 else meshes[1]
    require_raises(
        ValueError, differ, lambda: DistributedPattern.from_csr(*rows, (8, 8), mesh=mesh)
    )
    two = "mesh must have one dimension, or two (rings, replicas); got 3 dimensions"
    make = DistributedPattern.from_csr
    require_raises(ValueError, two, lambda: make(*rows, (8, 8), mesh=meshes[2]))
    both = "give group or mesh, not both"
    require_raises(
        ValueError, both, lambda: make(*rows, (8, 8), group=dist.group.WORLD, mesh=meshes[0])
    )
    group = dist.new_group([0, 1])
    if rank > 1:
        words = f"group does not hold this rank, {rank}"
        require_raises(ValueError, words, lambda: make(*rows, (8, 8), group=group))


def of_dtensors(S: DistributedPattern, case: Case, mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    w = case.weights[case.own]
    dense = case.b.mT.contiguous()
    replicated = distribute_tensor(dense, mesh, [Replicate()])
    words = "each must be S(0): redistribute it"
    require_raises(ValueError, words, lambda: sddmm.spmm(S, replicated, values=w))
    other = DistributedPattern.from_csr(
        *part(case.whole, 5 if on(1) else 0, 21 if on(1) else 5), (21, 21)
    )
    sharded = distribute_tensor(dense, mesh, [Shard(0)])
    cut = "dense as a DTensor has shards of [11, 10] rows, and S is cut into [5, 16]"
    values = torch.ones(other.nnz, dtype=torch.float64, device=here())
    require_raises(ValueError, cut, lambda: sddmm.spmm(other, sharded, values=values))


OF_TWO_RANKS = [
    of_arguments,
    of_a_first_panel,
    of_a_preparation,
    of_a_computation,
    of_ranks_that_share_memory,
    of_a_rank_that_does_not_call,
]
