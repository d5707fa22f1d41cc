"""The passes of attention's gradients: by rows for dQ and dbias, by columns for dK and dV."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import Kernel
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.attention_delta.host import row_stats
from sddmm.backends.cuda.kernels.attention_gather.groups import head_stride
from sddmm.dropout import kept_factor, threshold

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem

Values = dict[str, int | float]


class PassInputs(NamedTuple):
    """What the passes read and write; out to grad_lse: see `PreparedAttention`.

    weights: (heads, nnz, 2) float32, of some heads at a time, which the pass by rows stores and
    that by columns reads; None where both compute them. stats: see `row_stats`; None where weights
    are stored. by_columns: whether it is the pass by columns.
    """

    operands: AttentionOperands
    out: Tensor
    lse: Tensor
    grad_out: Tensor
    grad_lse: Tensor | None
    gradients: AttentionGradients
    stats: Tensor | None = None
    weights: Tensor | None = None
    by_columns: bool = False

    @property
    def rows(self) -> dict[str, Tensor]:
        """The operands by the names that the kernels give them: `own` are those whose rows belong
        to the rows, or the columns, that the pass sums."""
        q, k, v = self.operands[:3]
        names = ("own_key", "own_value", "key", "value")
        of_queries, of_keys = (q, self.grad_out), (k, v)
        ordered = (*of_keys, *of_queries) if self.by_columns else (*of_queries, *of_keys)
        return dict(zip(names, ordered, strict=True))


class Pass(NamedTuple):
    """The launches of one pass, for given operands.

    merge: None if nothing is to be merged. blocks, merge_blocks: those of a head. arguments: those
    of the kernels by name; of new_pass those that not all passes have. pieces: memory that the
    launches use.
    """

    kernel: Kernel
    merge: Kernel | None
    blocks: int
    merge_blocks: int
    arguments: Values
    pieces: Tensor | None

    def launch(self, first_head: int, heads: int) -> None:
        """Launch for some heads."""
        self.arguments.update(first_head=first_head, heads=heads)
        self.kernel(self.blocks * heads, *self._values())

    def finish(self, heads: int) -> None:
        """Merge what the launches of all heads, which are so many, have left."""
        if self.merge is not None:
            self.merge(self.merge_blocks * heads, *self._values())

    def _values(self) -> list[int | float]:
        return [self.arguments[name] for name, *_ in self.kernel.parameters._fields_]  # type: ignore[union-attr]


class GradientPasses:
    """Launches the gradients of attention over one pattern. Derived classes have the kernels."""

    def __init__(self, problem: AttentionProblem, device: Device) -> None:
        self._problem, self._device = problem, device

    def prepare(self) -> None:
        """Do what follows from the pattern alone."""
        raise NotImplementedError

    def new_pass(self, inputs: PassInputs) -> Pass:
        """The launches of a pass on these operands."""
        raise NotImplementedError

    def new_weights(self, most_heads: int) -> Tensor | None:
        """Memory for the weights of some heads, at most so many; None if passes store none."""
        return None

    def run(self, inputs: PassInputs) -> None:
        """Launch on torch's current stream."""
        problem, gradients = self._problem, inputs.gradients
        bias, heads = gradients.bias, problem.heads
        by_rows = gradients.q is not None or bias is not None
        by_columns = gradients.k is not None or gradients.v is not None
        # Heads that share a bias add to its gradient: one launch after the other, in a fixed order.
        adds_heads = bias is not None and heads > 1 and not problem.bias_has_heads
        most_heads = 1 if adds_heads else heads
        weights = self.new_weights(most_heads) if by_rows and by_columns else None
        if weights is not None:
            inputs = inputs._replace(weights=weights)
        else:
            inputs = inputs._replace(stats=self._row_stats(inputs))
        bias_sums = bias
        if adds_heads and bias is not None and bias.dtype != torch.float32:
            bias_sums = torch.empty_like(bias, dtype=torch.float32)
        passes = []
        if by_rows:
            results: Values = {
                "key_grad": address(gradients.q), "bias_grad": address(bias_sums),
                "sums_bias": adds_heads,
            }  # fmt: skip
            passes.append((self._complete(inputs, results), most_heads))
        if by_columns:
            results = {"key_grad": address(gradients.k), "value_grad": address(gradients.v)}
            passes.append((self._complete(inputs._replace(by_columns=True), results), heads))
        if weights is not None:
            self._launch([each for each, _ in passes], weights.shape[0])
        else:
            for each, most in passes:
                self._launch([each], most)
        if bias is not None and bias_sums is not None and bias_sums is not bias:
            bias.copy_(bias_sums)

    def _launch(self, passes: list[Pass], most_heads: int) -> None:
        """Launch passes, one after the other for so many heads at a time."""
        heads = self._problem.heads
        for first in range(0, heads, most_heads):
            for each in passes:
                each.launch(first, min(most_heads, heads - first))
        for each in passes:
            each.finish(heads)

    def _row_stats(self, inputs: PassInputs) -> Tensor:
        return row_stats(
            self._problem, inputs.out, inputs.lse, inputs.grad_out, inputs.grad_lse, self._device
        )

    def _complete(self, inputs: PassInputs, results: Values) -> Pass:
        """The launches of a pass with all arguments. results: addresses of gradients by name."""
        problem, operands, lse = self._problem, inputs.operands, inputs.lse
        launches = self.new_pass(inputs)
        arguments = launches.arguments
        arguments.update({
            "bias": address(operands.bias), "head_bias": head_stride(operands.bias),
            "stats": address(inputs.stats), "lse": lse.data_ptr(),
            "out": inputs.out.data_ptr() or lse.data_ptr(), "grad_lse": address(inputs.grad_lse),
            "weights": address(inputs.weights),
            "key_grad": 0, "value_grad": 0, "bias_grad": 0, "sums_bias": 0, **results,
            "pieces": address(launches.pieces), "seed": address(operands.seed),
            "dropout_threshold": threshold(operands.dropout_p),
            "kept": kept_factor(operands.dropout_p), "scale": operands.scale, "nnz": problem.nnz,
            "row_count": problem.n if inputs.by_columns else problem.m,
            "other_count": problem.m if inputs.by_columns else problem.n,
            "query_count": problem.m, "d": problem.d, "dv": problem.dv,
        })  # fmt: skip
        for name, x in inputs.rows.items():
            arguments[name] = x.data_ptr() or lse.data_ptr()  # without elements: anywhere
            arguments[f"head_{name}"] = x.stride(0)
        return launches


class PlanWithGradients:
    """A plan of attention whose gradients are passes. Derived classes have the forward."""

    reads_beyond = False

    def __init__(self, gradients: GradientPasses) -> None:
        self._gradients = gradients

    def prepare_backward(self) -> None:
        self._gradients.prepare()

    def backward(
        self,
        operands: AttentionOperands,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        gradients: AttentionGradients,
    ) -> None:
        self._gradients.run(PassInputs(operands, out, lse, grad_out, grad_lse, gradients))
