"""What a case of attention must give: float64 from the definition, its gradients by autograd.

Independent of the package but for its public error bounds, and for which weights dropout drops.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sddmm import SparsePattern
from sddmm.dropout import kept_factors
from sddmm.testing import attention_error_bound, attention_gradients_error_bound
from tests.fuzz.build import dtype_of
from tests.fuzz.case import Case
from tests.fuzz.truth import Expected, dots, finite


class AttentionTruth:
    """The exact result of a case for these numbers, of its dtype, at these positions.

    a: (h, m, k), b_t: (h, n, k), values: (nnz,) or (h, nnz).
    """

    def __init__(
        self, case: Case, a: Tensor, b_t: Tensor, values: Tensor, rows: Tensor, cols: Tensor
    ) -> None:
        self.case, self.rows, self.cols = case, rows.long(), cols.long()
        self.operands = (a, b_t, b_t)
        bias = values if case.scale else None
        self.leaves = {
            name: x.double().requires_grad_() for name, x in (("a", a), ("b", b_t), ("v", values))
        }
        seed = None
        if case.dropout != 0:
            generator = torch.Generator(case.on).manual_seed(case.seed)
            seed = torch.randint(2**63 - 1, (1,), generator=generator, device=case.on)
        self.options = {
            "scale": case.alpha, "bias": bias, "dropout_p": case.dropout, "seed": seed
        }  # fmt: skip
        self.pattern = SparsePattern.from_coo(self.rows, self.cols, (case.m, case.n))
        self.out = self._out(**self.leaves, seed=seed)

    def _out(self, a: Tensor, b: Tensor, v: Tensor, seed: Tensor | None) -> Tensor:
        """(h, m, k), followed by autograd."""
        case, rows = self.case, self.rows
        scores = case.alpha * dots(a, b, rows, self.cols)
        if case.scale:
            scores = scores + v
        heads = scores.shape[0]
        ids = rows.expand_as(scores)
        top = scores.new_full((heads, case.m), -torch.inf)
        top = top.scatter_reduce(1, ids, scores.detach(), "amax")
        powers = (scores - top[:, rows]).exp()
        sums = powers.new_zeros(heads, case.m).index_add(1, rows, powers)
        weights = powers / sums[:, rows]
        if seed is not None:
            count = rows.numel()
            weights = weights * kept_factors(seed, heads, count, case.dropout, weights.dtype)
        out = b.new_zeros(heads, case.m, case.k)
        return out.index_add(1, rows, weights[..., None] * b[:, self.cols])

    def result(self) -> Expected:
        bound, _ = attention_error_bound(self.pattern, *self.operands, **self.options)
        truth = self.out.detach()
        return Expected(truth, bound, torch.zeros_like(truth, dtype=torch.bool))

    def gradient(self, name: str, upstream: Tensor) -> Expected:
        """The gradient of a, as (h, m, k); of b, as (h, n, k) rows; or of the values."""
        case = self.case
        grad_out = upstream.to(dtype_of(case.dtype))
        (truth,) = torch.autograd.grad(
            self.out, self.leaves[name], upstream, retain_graph=True, allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip
        bounds = attention_gradients_error_bound(
            self.pattern, *self.operands, grad_out, **self.options
        )
        if name == "b":  # k and v at once, whose gradients are rounded, and their sum again
            info = torch.finfo(grad_out.dtype)
            assert bounds.k is not None
            assert bounds.v is not None
            bound = (bounds.k + bounds.v) * (1 + info.eps) + info.eps * finite(truth).abs()
        else:
            found = bounds.q if name == "a" else bounds.bias
            assert found is not None
            bound = found
        return Expected(truth, bound, torch.zeros_like(truth, dtype=torch.bool))
