"""The protocol of backends, and the list of them; `selection.py` chooses one for a problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem, SddmmProblem, SpmmProblem
    from sddmm.sparse.pattern import SparsePattern


MANY_CALLS = 1000
"""The number of runs to expect of a plan that a caller makes, or of a pattern that comes back."""


Operands = tuple[Tensor, Tensor, Tensor | None, float]
"""The inputs of a run: a, b, the values of S or None, and alpha."""


class Executor(Protocol):
    """A prepared computation of out = alpha * (a @ b) at the pattern, times values."""

    @property
    def notes(self) -> Sequence[str]:
        """Lines of `Plan.explain` about what was prepared."""

    def __call__(
        self, a: Tensor, b: Tensor, values: Tensor | None, alpha: float, out: Tensor
    ) -> None:
        """Fill `out`, ([heads,] nnz), which is contiguous and has the problem's out_dtype.

        a is ([heads,] m, k) and b ([heads,] k, n), of any strides; values, if any, are (nnz,) and
        have the dtype of a.
        """


class FirstRun(Protocol):
    """The run that a plan is prepared for, which a backend may launch before it has finished."""

    operands: Operands

    is_launched: bool

    keeps_pattern: bool
    """Whether a later call may use what is prepared; else the pattern goes with this call."""

    @property
    def out(self) -> Tensor:
        """Memory for the result."""

    def __call__(self, execute: Executor) -> None:
        """Launch the run with an executor, unless that was done."""

    def wrap_result(self) -> Any:
        """Do the host's work on the result, when the run is launched: while the device computes."""


class SingleRuns(Protocol):
    """Runs of one problem, each as quick as a single one can be: without a plan."""

    def __call__(self, pattern: SparsePattern, run: FirstRun) -> bool:
        """Launch a run and check its pattern (ValueError). False if its tensors, their content or
        the state of the device need another way, which computes all of it."""


class CsrSampler(ABC):
    """Runs of one problem that read CSR indices as they are, and prepare nothing that a later run
    could use."""

    @abstractmethod
    def sample(self, crow: Tensor, cols: Tensor, operands: Operands) -> Tensor:
        """The new values; all tensors fit the problem. ValueError for invalid indices."""


class PreparedProduct(Protocol):
    """A prepared product out = alpha * W X with the weights W of one pattern."""

    @property
    def notes(self) -> Sequence[str]:
        """Lines about what was prepared."""

    def __call__(
        self, values: Tensor, factors: Tensor | None, dense: Tensor, alpha: float, out: Tensor,
        beyond: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Fill `out`, ([heads,] m, k), which is contiguous and has the problem's out_dtype.

        The weight of nonzero i in head h is values[h, i] * factors[i], in the pattern's order.
        values are (nnz,) or (heads, nnz), factors (nnz,) or None, and dense is ([heads,] n, k), all
        of any strides. beyond: the last rows of X, (rows, k), where dense, (n - rows, k), has the
        first ones alone; for backends that read one tensor they are joined.
        """


class Addend(NamedTuple):
    """A matrix that a product without heads is added to, and where the total is stored.

    sums: (m, d), contiguous, in the accumulator's dtype, scaled by alpha already. out_rows: (m,)
    int64, no two the same: row i of the total is row out_rows[i] of a larger result.
    """

    sums: Tensor
    out_rows: Tensor


@runtime_checkable
class AddingProduct(Protocol):
    """A prepared product that may be able to add to other sums."""

    @property
    def takes_addend(self) -> bool:
        """Whether `add` can be called."""

    def add(
        self, values: Tensor, dense: Tensor, alpha: float, addend: Addend, out: Tensor,
        beyond: Tensor | None = None,
    ) -> None:  # fmt: skip
        """out[out_rows[i]] = sums[i] + row i of the product, rounded once, for every i."""


class AttentionOperands(NamedTuple):
    """The inputs of an attention, as a backend receives them.

    q: (heads, m, d), k: (heads, n, d), v: (heads, n, dv), of the problem's dtype. The strides of
    heads and rows are any, 0 too, so rows may be aligned to no more than an element; the inner
    stride is 1, unless the inner size is 0 or 1. bias: of the same dtype, (heads, nnz) if the
    problem's bias_has_heads, else (nnz,), in the pattern's order and with inner stride 1; None if
    it has none. scale: multiplies the dot products. dropout_p: the probability, in 0..1, with which
    a weight is dropped. seed: (1,) int64 on the device, never read by the host; None without
    dropout. beyond: the last rows of K and of V, where k and v have the first ones alone; with one
    head only, and of k's number of dimensions.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    scale: float
    dropout_p: float = 0.0
    seed: Tensor | None = None
    beyond: tuple[Tensor, Tensor] | None = None

    def joined(self) -> AttentionOperands:
        """The same with all rows of K, and of V, in one tensor."""
        if self.beyond is None:
            return self
        k, v = (joined(*x) for x in zip(self[1:3], self.beyond, strict=True))
        return self._replace(k=k, v=v, beyond=None)


class AttentionGradients(NamedTuple):
    """Memory for the gradients that are needed; None for one that is not.

    Each is contiguous, of the problem's dtype and of its operand's shape: bias (nnz,) is the sum
    over heads where they share it.
    """

    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    bias: Tensor | None


class PreparedAttention(Protocol):
    """A prepared sparse attention over one pattern. Every result has the same bits on every run.

    With i the position of a nonzero in the pattern's order, r its row and c its column, in a head:

        s_i = scale * (q_r . k_c) + bias_i          lse_r = log(sum over the row of exp(s_i))
        p_i = exp(s_i - lse_r)                      out_r = sum over the row of z_i p_i v_c

    z_i is 1 without dropout, else 0 or 1 / (1 - dropout_p) as `sddmm/dropout.py` says. Duplicates
    are nonzeros of their own. Half types are multiplied and added in float32, and out and the
    gradients are rounded once; a weight p_i (or z_i p_i) may be rounded to the half type for a
    matrix instruction, as may ds_i.

    A row without nonzeros, or with no score but -inf, has out = 0 and lse = -inf, and its
    gradients are 0: wherever lse_r is -inf, p_i is exp(s_i) = 0. (0 times a v_c that is not finite
    is NaN.) A NaN or +inf among a row's scores makes the row of out, and its lse, NaN.
    """

    @property
    def notes(self) -> Sequence[str]:
        """Lines about what was prepared."""

    def forward(self, operands: AttentionOperands, out: Tensor, lse: Tensor) -> None:
        """Fill `out`, (heads, m, dv) of the problem's dtype, and `lse`, (heads, m) of its
        accumulator; both contiguous. Every element of both is written."""

    def prepare_backward(self) -> None:
        """Do what `backward` needs of the pattern, such as its nonzeros by column.

        Called once, before the first `backward`, and never while a CUDA graph is captured.
        """

    def backward(
        self,
        operands: AttentionOperands,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        gradients: AttentionGradients,
    ) -> None:
        """Fill the gradients, every element of them, from what `forward` was given and has filled.

        grad_out: like `out`, of strides as q's; grad_lse: like `lse`, contiguous, or None for 0.
        With delta_r = grad_out_r . out_r - grad_lse_r and g_i = z_i (grad_out_r . v_c):

            ds_i = p_i (g_i - delta_r)              dq_r = scale * sum over the row of ds_i k_c
            dbias_i = ds_i                          dk_c = scale * sum over the column of ds_i q_r
                                                    dv_c = sum over the column of z_i p_i grad_out_r
        """


class Backend(Protocol):
    """One way to compute a problem."""

    name: str

    plans_by_calls: bool
    """Whether what is prepared depends on the number of runs to expect."""

    def available(self) -> str | None:
        """None, or the reason why this backend cannot run in this environment."""

    def refuses(self, problem: SddmmProblem) -> str | None:
        """None, or the reason why this backend does not serve `problem`."""

    @property
    def kernels(self) -> Sequence[str]:
        """The names by which a caller may request one of its kernels."""

    def prepare(
        self,
        pattern: SparsePattern,
        problem: SddmmProblem,
        kernel: str | None = None,
        calls: int = MANY_CALLS,
        first_run: FirstRun | None = None,
    ) -> Executor:
        """Do all work that depends on the pattern alone, its check (ValueError) included.

        kernel: request one of `kernels`. calls: the number of runs to expect; what is prepared
        must pay within them. 1: the cheapest single run, preparation and binding included.
        first_run: may be called with the executor before `prepare` has finished, to save time.
        """

    def single_runs(self, problem: SddmmProblem, is_csr: bool, is_kept: bool) -> SingleRuns | None:
        """The runs without a plan of a problem that this backend serves; None if there are none.

        is_csr: the form of the patterns. is_kept: whether later calls may use what is prepared of
        them. The answer is kept until `forget_choices`.
        """

    def refuses_product(self, problem: SpmmProblem) -> str | None:
        """None, or the reason why this backend does not compute the product."""

    def prepare_product(
        self, pattern: SparsePattern, problem: SpmmProblem, transpose: bool = False
    ) -> PreparedProduct:
        """Do all work of a product that depends on the pattern alone, its check included.

        pattern: that of W, or with `transpose` the one whose transpose is that of W. It prepares
        for many runs.
        """

    def refuses_attention(self, problem: AttentionProblem) -> str | None:
        """None, or the reason why this backend has no fused kernel for the attention."""

    def prepare_attention(
        self, pattern: SparsePattern, problem: AttentionProblem
    ) -> PreparedAttention:
        """Do all work of the forward that depends on the pattern alone, its check included.

        The problem's sizes are at least 1, but for d and dv, which may be 0. It prepares for many
        runs, forward and backward.
        """


BACKENDS: list[Backend] = []
"""The backends in order: the first that does not refuse serves. `sddmm/__init__.py` adds them."""


def refusal(backend: Backend, problem: SddmmProblem) -> str | None:
    """None if `backend` can serve `problem` here, else the reason why not."""
    return backend.available() or backend.refuses(problem)


def joined(first: Tensor, beyond: Tensor | None) -> Tensor:
    """Rows of a dense operand, ([heads,] rows, k), that stand in two tensors, in one."""
    return first if beyond is None else torch.cat([first, beyond], dim=-2)


def resolve_lazy_view(x: Tensor) -> Tensor:
    """A tensor whose memory holds the numbers of x.

    torch negates some views only when they are read, and some tensors of zeros have no memory.
    """
    if x.is_neg():
        return x.resolve_neg()
    return torch.zeros_like(x, device=x.device) if x._is_zerotensor() else x


def by_head(a: Tensor, b_t: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The 2-D operands and the values of each head; one head where there are none."""
    if a.dim() == 2:
        return iter([(a, b_t, out)])
    return zip(a, b_t, out, strict=True)


def product_heads(
    out: Tensor, values: Tensor, dense: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The result, the values and the dense operand of each head; one head where there are none."""
    if dense.dim() == 2:
        return iter([(out, values, dense)])
    return zip(out, values.expand(dense.shape[0], -1), dense, strict=True)


def head_weights(values: Tensor, factors: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The weights of one head's nonzeros."""
    weights = values.to(dtype)
    return weights if factors is None else weights * factors.to(dtype)
