"""Attention over a distributed matrix against one process's, with the gradients of all operands."""

from __future__ import annotations

import torch
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


def check_volume(case: Case) -> None:
    """Forward, panels of K and V travel once; whole panels, of which every rank gets the others."""
    S, columns = case.S, case.S.columns.stop - case.S.columns.start
    v = torch.ones(columns, 3, dtype=case.a.dtype, device=here())
    with counted() as total:
        sddmm.sparse_attention(S, case.local_a, case.local_b.mT, v)
    others = case.whole.shape[1] - v.shape[0]
    assert total[1] == others * (case.a.shape[-1] + 3) * 8
