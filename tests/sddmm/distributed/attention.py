"""Attention over a distributed matrix against one process's, with the gradients of all operands."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

import sddmm
from tests.sddmm.distributed.cases import Case, here, leaves
from tests.sddmm.distributed.volumes import counted


def check(case: Case, what: str, dv: int = 7) -> None:
    S, lead, n = case.S, case.a.shape[:-2], case.whole.shape[1]
    generator = torch.Generator().manual_seed(4)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=case.a.dtype).to(here())

    def close(name: str, got: Tensor | None, expected: Tensor | None, at: object) -> None:
        assert got is not None
        assert expected is not None
        torch.testing.assert_close(
            got,
            expected[at],
            msg=lambda text: f"{what}: {name}: {text}",  # type: ignore[index]
        )

    bias = case.weights.clone()
    if case.whole.nnz > 3:  # a row whose scores are all -inf, as a mask makes them
        bias[: int(case.whole.major_indices[1])] = -torch.inf
    own, rows, columns = (..., case.own), (..., S.rows, slice(None)), (..., S.columns, slice(None))
    wholes = leaves(case.a, case.b.mT, draw(*lead, n, dv), bias)
    places = [rows, columns, columns, own]
    locals_ = leaves(*(x[at] for x, at in zip(wholes, places, strict=True)))
    grad_out, grad_lse = draw(*lead, case.whole.shape[0], dv), draw(*lead, case.whole.shape[0])
    at_lse = (..., S.rows)

    def run(matrix: object, x: list[Tensor], g: Tensor, g_lse: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = sddmm.sparse_attention(matrix, *x[:3], bias=x[3], scale=0.3, return_lse=True)
        is_finite = lse > -torch.inf
        ((out * g).sum() + (lse[is_finite] * g_lse[is_finite]).sum()).backward()
        return out, lse

    expected = run(case.whole, wholes, grad_out, grad_lse)
    got = run(S, locals_, grad_out[rows], grad_lse[at_lse])
    close("out", got[0], expected[0], rows)
    close("lse", got[1], expected[1], at_lse)
    for name, mine, single, at in zip("qkvb", locals_, wholes, places, strict=True):
        close(f"gradient of {name}", mine.grad, single.grad, at)
    for needed in (0, 2):  # of q alone no sums travel, of v alone those of one tensor
        x = [y.detach().requires_grad_(i == needed) for i, y in enumerate(locals_)]
        run(S, x, grad_out[rows], grad_lse[at_lse])
        close("a gradient alone", x[needed].grad, wholes[needed].grad, places[needed])
    # Views that torch negates when they are read are negated before their rows travel.
    q, k, v = (torch._neg_view((-x.detach()).contiguous()) for x in locals_[:3])
    negated, _ = run(S, [q, k, v, locals_[3]], grad_out[rows], grad_lse[at_lse])
    close("of negated views", negated, expected[0], rows)


def check_dropout(case: Case, what: str) -> None:
    """One seed gives one result, of which the gradients are those, in every dtype and in one that
    no kernel serves; all ranks together, as sums of dK and dV come from all."""
    S = case.S

    def run(dtype: torch.dtype, seed: int = 3, p: float = 0.4) -> list[Tensor]:
        x = leaves(*(y.to(dtype) for y in (case.local_a, case.local_b.mT, case.local_b.mT + 1)))
        generator = torch.Generator(here()).manual_seed(seed)
        out = sddmm.sparse_attention(S, *x, dropout_p=p, generator=generator)
        out.square().sum().backward()
        return [out.detach().double(), *(y.grad.double() for y in x if y.grad is not None)]

    exact = run(torch.float64)
    for name, got, again, expected in zip(
        "oqkv", run(torch.float32), run(torch.float64), exact, strict=True
    ):
        assert torch.equal(again, expected), f"{what}: {name} differs from call to call"
        torch.testing.assert_close(
            got, expected, rtol=1e-4, atol=1e-4, msg=lambda text, n=name: f"{what}: {n}: {text}"
        )
    other = run(torch.float64, seed=4)[0]
    assert S.nnz < 20 or not torch.equal(other, exact[0]), what
    assert not run(torch.float64, p=1.0)[0].any(), what
    check_derivative(case, what)


def check_derivative(case: Case, what: str) -> None:
    """The gradients with dropout are those of differences, of the sum over all ranks."""
    parts = [case.local_a, case.local_b.mT, case.local_b.mT + 1]
    generator = torch.Generator().manual_seed(5 + dist.get_rank())
    steps = [torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device) for x in parts]

    def total(x: list[Tensor]) -> Tensor:
        seeded = torch.Generator(here()).manual_seed(3)
        out = sddmm.sparse_attention(case.S, *x, dropout_p=0.4, generator=seeded)
        return out.sin().sum()

    def over_ranks(x: Tensor) -> float:
        summed = x.detach().clone()
        dist.all_reduce(summed)
        return float(summed)

    wanted = leaves(*parts)
    total(wanted).backward()
    along = sum((x.grad * step).sum() for x, step in zip(wanted, steps, strict=True))
    assert isinstance(along, Tensor)
    ends = [
        total([x + sign * 1e-5 * step for x, step in zip(parts, steps, strict=True)])
        for sign in (1, -1)
    ]
    slope = (over_ranks(ends[0]) - over_ranks(ends[1])) / 2e-5
    assert abs(slope - over_ranks(along)) < 1e-5 * max(1.0, abs(slope)), what


def check_volume(case: Case) -> None:
    """Forward, panels of K and V travel once; whole panels, of which every rank gets the others."""
    S, columns = case.S, case.S.columns.stop - case.S.columns.start
    v = torch.ones(columns, 3, dtype=case.a.dtype, device=here())
    with counted() as total:
        sddmm.sparse_attention(S, case.local_a, case.local_b.mT, v)
    others = case.whole.shape[1] - v.shape[0]
    assert total[1] == others * (case.a.shape[-1] + 3) * 8
