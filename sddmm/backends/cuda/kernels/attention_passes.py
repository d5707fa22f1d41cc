"""The passes of attention's gradients: by rows for dQ and dbias, by columns for dK and dV."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gemm_core.runtime.device import Device
from gemm_core.runtime.launch import Kernel
from sddmm.backends.base import AttentionGradients, AttentionOperands
from sddmm.backends.cuda.executor import address
from sddmm.backends.cuda.kernels.attention_delta.host import deltas
from sddmm.backends.cuda.kernels.attention_gather.groups import head_stride
from sddmm.dropout import kept_factor, threshold

if TYPE_CHECKING:
    from sddmm.problem import AttentionProblem


class PassInputs(NamedTuple):
    """What both passes read and write. by_columns: whether this one is by columns."""

    operands: AttentionOperands
    grad_out: Tensor
    gradients: AttentionGradients
    by_columns: bool

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
    of the kernels by name, beside what all passes have. pieces: memory that the launches use.
    """

    kernel: Kernel
    merge: Kernel | None
    blocks: int
    merge_blocks: int
    arguments: dict[str, int | float]
    pieces: Tensor | None


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

    def run(
        self,
        operands: AttentionOperands,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        gradients: AttentionGradients,
    ) -> None:
        """Launch on torch's current stream; the arguments are those of `PreparedAttention`."""
        delta = deltas(self._problem, out, grad_out, grad_lse, self._device)
        if gradients.q is not None or gradients.bias is not None:
            self._run_rows(PassInputs(operands, grad_out, gradients, False), lse, delta)
        if gradients.k is not None or gradients.v is not None:
            inputs = PassInputs(operands, grad_out, gradients, True)
            launches = self.new_pass(inputs)
            arguments = self._arguments(inputs, launches, lse, delta)
            arguments.update(key_grad=address(gradients.k), value_grad=address(gradients.v))
            self._launch(launches, arguments, self._problem.heads)

    def _run_rows(self, inputs: PassInputs, lse: Tensor, delta: Tensor) -> None:
        problem, bias = self._problem, inputs.gradients.bias
        launches = self.new_pass(inputs)
        arguments = self._arguments(inputs, launches, lse, delta)
        arguments["key_grad"] = address(inputs.gradients.q)
        if bias is None or problem.heads == 1 or problem.bias_has_heads:
            arguments["bias_grad"] = address(bias)
            self._launch(launches, arguments, problem.heads)
            return
        # Heads share the bias: one launch after the other adds, in a fixed order.
        sums = bias if bias.dtype == torch.float32 else torch.empty_like(bias, dtype=torch.float32)
        arguments.update(bias_grad=sums.data_ptr(), sums_bias=1)
        for head in range(problem.heads):
            arguments["first_head"] = head
            self._launch(launches, arguments, 1, merges=head == problem.heads - 1)
        if sums is not bias:
            bias.copy_(sums)

    def _launch(
        self, launches: Pass, arguments: dict[str, int | float], heads: int, merges: bool = True
    ) -> None:
        kernel, merge = launches.kernel, launches.merge
        arguments["heads"] = heads
        values = [arguments[name] for name, *_ in kernel.parameters._fields_]  # type: ignore[union-attr]
        kernel(launches.blocks * heads, *values)
        if merge is not None and merges:
            merge(launches.merge_blocks * self._problem.heads, *values)

    def _arguments(
        self, inputs: PassInputs, launches: Pass, lse: Tensor, delta: Tensor
    ) -> dict[str, int | float]:
        """The arguments of a pass by name, without gradients."""
        problem, operands = self._problem, inputs.operands
        arguments: dict[str, int | float] = {
            "bias": address(operands.bias), "head_bias": head_stride(operands.bias),
            "lse": lse.data_ptr(), "delta": delta.data_ptr(),
            "key_grad": 0, "value_grad": 0, "bias_grad": 0, "first_head": 0, "sums_bias": 0,
            "pieces": address(launches.pieces), "seed": address(operands.seed),
            "dropout_threshold": threshold(operands.dropout_p),
            "kept": kept_factor(operands.dropout_p), "scale": operands.scale, "nnz": problem.nnz,
            "row_count": problem.n if inputs.by_columns else problem.m,
            "other_count": problem.m if inputs.by_columns else problem.n,
            "query_count": problem.m, "d": problem.d, "dv": problem.dv, **launches.arguments,
        }  # fmt: skip
        for name, x in inputs.rows.items():
            arguments[name] = x.data_ptr() or lse.data_ptr()  # without elements: anywhere
            arguments[f"head_{name}"] = x.stride(0)
        return arguments


class PlanWithGradients:
    """A plan of attention whose gradients are passes. Derived classes have the forward."""

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
        self._gradients.run(operands, out, lse, grad_out, grad_lse, gradients)
