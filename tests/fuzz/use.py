"""The calls of a case, its objects' copies, and changes in place."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sddmm
from tests.fuzz import build
from tests.fuzz.attention import AttentionTruth
from tests.fuzz.build import Indices, dtype_of
from tests.fuzz.case import BLOCKED, COMPRESSED, SCIPY, WITH_VALUES, Case
from tests.fuzz.refusals import differentiable, wrong_dtype
from tests.fuzz.truth import Truth

_GUARD = 7.0


class Wrong(Exception):
    """A result that is not right, in words."""


class Use:
    """One S and its operands, called as the case says; made anew where the indices are others."""

    def __init__(self, case: Case, rows: Tensor, cols: Tensor) -> None:
        self.case, self.rows, self.cols = case, rows, cols
        self.x_a, self.x_b, self.x_values = build.numbers(case, rows, cols)
        self.upstream = self._upstream()
        self.a, self.a_buffer = self._operand(self.x_a, case.strides_a)
        b_rows, self.b_buffer = self._operand(self.x_b, case.strides_b)
        self.b = b_rows.swapaxes(-1, -2)
        self.before = [_bytes(buffer).clone() for buffer in (self.a_buffer, self.b_buffer)]
        values_dtype = self.x_values.dtype
        if case.hostile == "values_dtype":
            values_dtype = wrong_dtype(case.dtype)
        step = 1 if case.kind in SCIPY else case.value_strides
        self.values, _ = build.guarded(self.x_values.to(values_dtype), step, case.on)
        # torch's gradient of the construction of a CSR tensor is wrong where columns are not
        # sorted, and that of a COO tensor forbids changes in place: S is the leaf there.
        self.values.requires_grad_("v" in case.gradients and not self._leaf_is_S())
        self.indices = Indices.of(case, rows, cols)
        self.make(self.indices)

    def make(self, indices: Indices) -> None:
        """S over these indices, and its plan."""
        is_bias = self.case.entry == "attention"
        self.S = build.sparse(self.case, indices, self.values.detach() if is_bias else self.values)
        if self._leaf_is_S() and "v" in self.case.gradients:
            self.S.requires_grad_()
        self.indices = indices
        self.plan: sddmm.Plan | None = None

    def _leaf_is_S(self) -> bool:
        if self.case.entry in ("op", "attention"):
            return False
        return self.case.kind in ("torch_csr", "torch_coo", "torch_bsr")

    def _upstream(self) -> Tensor:
        """The gradient that comes from above, (h, nnz), of the result's dtype, on the CPU."""
        heads = 1 if self.case.heads is None else self.case.heads
        generator = torch.Generator().manual_seed(self.case.seed + 1)
        g = torch.randn(heads, *self._result_shape(), generator=generator)
        return g.to(dtype_of(self.case.out))

    def _result_shape(self) -> tuple[int, ...]:
        """The shape of the result for one head."""
        case = self.case
        if case.entry not in ("spmm", "attention"):
            return (self.rows.numel(),)
        return (case.n if case.transpose else case.m, case.k)

    def _operand(self, x: Tensor, strides: str) -> tuple[Any, Tensor]:
        case = self.case
        if not case.numpy_operands:
            view, buffer = build.placed(x, strides, case.on)
            return (view[0] if case.heads is None else view), buffer
        reverse = strides == "negated"
        view, buffer = build.placed(
            x.flip(1) if reverse else x, "offset" if reverse else strides, "cpu"
        )
        array = view.numpy()[:, ::-1] if reverse else view.numpy()
        return (array[0] if case.heads is None else array), buffer

    def truth(self) -> Truth | AttentionTruth:
        case = self.case
        if case.entry == "attention":
            inputs = (x.to(case.on) for x in (self.x_a, self.x_b, self.x_values))
            return AttentionTruth(case, *inputs, self.rows.to(case.on), self.cols.to(case.on))
        numbers = (x.to(case.on).double() for x in (self.x_a, self.x_b, self.x_values))
        return Truth(case, *numbers, self.rows.to(case.on), self.cols.to(case.on))

    # Calls

    def call(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The values, (h, nnz), and the gradients, as Truth has them."""
        leaves = self._leaves()
        a, b = leaves.get("a", self.a), leaves.get("b", self.b)
        values = self._numbers_of(self._called(a, b))
        if values.dtype != dtype_of(self.case.out):
            raise Wrong(f"values are {values.dtype}, not {self.case.out}")
        expected = self._result_shape()
        if self.case.heads is not None:
            expected = (self.case.heads, *expected)
        if tuple(values.shape) != expected:
            raise Wrong(f"the result has shape {tuple(values.shape)}, not {expected}")
        gradients = {}
        if differentiable(self.case):
            g = self.upstream.to(values.device).view(values.shape)
            found = torch.autograd.grad(values, list(leaves.values()), g, retain_graph=True)
            gradients = {
                name: self._as_truth(name, x) for name, x in zip(leaves, found, strict=True)
            }
        for name, buffer, before in zip(
            "ab", (self.a_buffer, self.b_buffer), self.before, strict=True
        ):
            if not torch.equal(_bytes(buffer), before):
                raise Wrong(f"the memory of operand {name} was written")
        values = values.detach()
        return (values[None] if self.case.heads is None else values), gradients

    def _leaves(self) -> dict[str, Tensor]:
        leaves: dict[str, Tensor] = {}
        for name in self.case.gradients:
            if name == "v":
                if self.case.weighted:
                    leaves[name] = self.S if self._leaf_is_S() else self.values
            else:
                leaves[name] = (self.a if name == "a" else self.b).detach().requires_grad_()
        return leaves

    def _as_truth(self, name: str, gradient: Tensor) -> Tensor:
        if name == "v":
            return gradient if gradient.layout == torch.strided else gradient.values().reshape(-1)
        if gradient.dtype != dtype_of(self.case.dtype):
            raise Wrong(f"the gradient of {name} is {gradient.dtype}")
        gradient = gradient.mT if name == "b" else gradient
        return gradient[None] if self.case.heads is None else gradient

    def _called(self, a: Any, b: Any) -> Any:
        case = self.case
        a, b = spoiled(case, a, b)
        out_dtype = None if case.out_dtype is None else dtype_of(case.out_dtype)
        out_dtype = torch.int32 if case.hostile == "out_dtype" else out_dtype
        precision = "fast" if case.hostile == "precision" else case.precision
        options = {"alpha": case.alpha, "out_dtype": out_dtype, "precision": precision}
        if case.entry == "sddmm":
            return sddmm.sddmm(self.S, a, b, scale=case.scale, **options)
        if case.entry == "sampled_addmm":
            return sddmm.sampled_addmm(self.S, a, b, beta=case.beta, alpha=case.alpha)
        if case.entry == "op":
            return self._operator(a, b, options)
        if case.entry == "attention":
            return self._attention(a, b.swapaxes(-1, -2))
        if case.entry == "spmm":
            return self._product(a if case.transpose else b.swapaxes(-1, -2), out_dtype)
        if self.plan is None:
            self.plan = sddmm.plan(
                self.S, k=case.k, dtype=dtype_of(case.dtype), heads=case.heads, scale=case.scale,
                backend="fast" if case.hostile == "backend" else case.backend,
                kernel="fast" if case.hostile == "kernel" else case.kernel, **options,
            )  # fmt: skip
        if case.entry == "plan":
            return self.plan.run(a, b)
        return self._into_out(self.plan, a, b)

    def _operator(self, a: Tensor, b: Tensor, options: dict[str, Any]) -> Tensor:
        rows, cols = self.indices.major, self.indices.minor
        values = self.values if self.case.scale else None
        case = self.case
        blocksize = (case.block_m, case.block_n) if case.kind in BLOCKED else None
        result: Tensor = torch.ops.sddmm.sddmm(
            rows, cols, a, b, values,
            compressed=case.kind in COMPRESSED, blocksize=blocksize, **options,
        )  # fmt: skip
        return result

    def _product(self, dense: Any, out_dtype: torch.dtype | None) -> Any:
        case = self.case
        values: Any = None if case.kind in WITH_VALUES else self.values
        if values is not None and case.numpy_operands:
            values = values.numpy()
        return sddmm.spmm(
            self.S, dense, values=values, transpose=case.transpose, alpha=case.alpha,
            out_dtype=out_dtype,
        )  # fmt: skip

    def _attention(self, q: Any, keys: Any) -> Any:
        case = self.case
        bias: Any = self.values if case.scale else None
        if bias is not None and case.numpy_operands:
            bias = bias.numpy()
        generator = torch.Generator(case.on).manual_seed(case.seed)
        return sddmm.sparse_attention(
            self.S, q, keys, keys, scale=case.alpha, bias=bias, dropout_p=case.dropout,
            generator=generator,
        )  # fmt: skip

    def _into_out(self, plan: sddmm.Plan, a: Any, b: Any) -> Tensor:
        """run(out=), out being in the middle of memory that must not be written."""
        case, nnz = self.case, self.rows.numel()
        shape = (nnz,) if case.heads is None else (case.heads, nnz)
        count = nnz * (1 if case.heads is None else case.heads)
        spoil = {"out_shape": 1, "out_strides": 2}.get(str(case.hostile), 0)
        memory = torch.full((2 * count + 80,), _GUARD, dtype=dtype_of(case.out), device=case.on)
        out = memory[40 : 40 + count].fill_(torch.nan).view(shape)
        if spoil == 1:
            out = memory[40 : 39 + count]
        elif spoil == 2:
            out = memory[40 : 40 + 2 * count : 2].view(shape)
        try:
            result = plan.run(a, b, out)
        except (ValueError, TypeError):
            if not spoil and not bool(out.isnan().all()):
                raise Wrong("out was written before the refusal") from None
            raise
        if result is not out:
            raise Wrong("run(out=) does not return out")
        if bool((memory[:40] != _GUARD).any()) or bool((memory[40 + count :] != _GUARD).any()):
            raise Wrong("memory beside out was written")
        return out

    # Results

    def _numbers_of(self, result: Any) -> Tensor:
        """The values of a result, which must be of S's kind, with S's indices."""
        case = self.case
        if case.entry not in ("sddmm", "sampled_addmm") or case.heads is not None:
            return self._bare(result)
        if case.kind in SCIPY:
            if type(result) is not type(self.S):
                raise Wrong(f"{type(self.S)} in, {type(result)} out")
            names = ("row", "col") if case.kind == "scipy_coo" else ("indptr", "indices")
            same = all(np.array_equal(getattr(result, x), getattr(self.S, x)) for x in names)
            if not same or result.shape != self.S.shape:
                raise Wrong("the result has not S's indices")
            return torch.from_numpy(result.data)
        if not case.kind.startswith("torch"):
            return self._bare(result)
        if result.layout != self.S.layout or result.shape != self.S.shape:
            raise Wrong(f"{self.S.layout} in, {result.layout} out")
        if case.kind in ("torch_csr", "torch_bsr"):
            pairs = [(result.crow_indices(), self.S.crow_indices())]
            pairs.append((result.col_indices(), self.S.col_indices()))
        else:
            pairs = [(result._indices(), self.S._indices())]
        if not all(torch.equal(x, y) for x, y in pairs):
            raise Wrong("the result has not S's indices")
        values: Tensor = result._values() if case.kind.endswith("uncoalesced") else result.values()
        return values.reshape(-1)

    def _bare(self, result: Any) -> Tensor:
        numpy = self.case.numpy_operands and self.case.entry != "plan_out"
        if not isinstance(result, np.ndarray if numpy else Tensor):
            raise Wrong(f"the result is {type(result)}")
        return torch.from_numpy(result) if numpy else result

    # Copies and changes

    def copied(self, how: str) -> Use:
        """The same calls on a copy of what was called: S, or its plan."""
        other = copy.copy(self)
        if self.plan is not None:
            other.plan = _copied(self.plan, how)
        else:
            other.S = _copied(self.S, how)
        return other

    @torch.no_grad()
    def new_values(self) -> None:
        """S's values changed in place, by torch or, of scipy, by numpy."""
        self.x_values = self.x_values.flip(0) * 0.5
        if self.case.kind in SCIPY:
            self.S.data[:] = self.x_values.numpy()
        else:
            self.values.copy_(self.x_values)

    def handles(self, original: bool) -> tuple[Any, Any]:
        """The two index arrays: those that S was made of, or as S gives them."""
        S, kind = self.S, self.case.kind
        if kind in SCIPY:
            return (S.row, S.col) if kind == "scipy_coo" else (S.indptr, S.indices)
        if kind == "tuple_numpy":
            return S[0], S[1]
        if kind.startswith("pattern"):
            return S.major_indices, S.col_indices
        if original or kind == "tuple" or self.case.entry == "op":
            return self.indices.major, self.indices.minor
        if kind in ("torch_csr", "torch_bsr"):
            return S.crow_indices(), S.col_indices()
        return tuple(S._indices())  # type: ignore[return-value]

    def turn(self, how: str = "in_place") -> None:
        """Other indices in place of these: by the objects that S gives, "in_place"; by those that S
        was made of, "original"; or by giving these other memory, "data", which torch's counters do
        not tell."""
        self.rows, self.cols = build.turned(self.case, self.rows, self.cols)
        contents = build.stored(self.case, self.rows, self.cols)
        rebinds = how == "data" and self.case.kind in (
            "tuple", "pattern_coo", "pattern_csr", "pattern_bsr"
        )  # fmt: skip
        for handle, content in zip(self.handles(how == "original"), contents, strict=True):
            if rebinds:
                handle.data = content.to(handle.device)
            else:
                handle[:] = content.numpy() if isinstance(handle, np.ndarray) else content

    def refill(self) -> None:
        """The memory refilled unseen, and a new S of new tensors over it."""
        self.rows, self.cols = build.turned(self.case, self.rows, self.cols)
        aliases = self.indices.anew()
        aliases.write(*build.stored(self.case, self.rows, self.cols))
        self.make(self.indices.anew())

    def freshen(self) -> None:
        """S given up, and a new one made, which the allocator may put in the same place."""
        self.rows, self.cols = build.turned(self.case, self.rows, self.cols)
        del self.S, self.indices, self.plan
        self.make(Indices.of(self.case, self.rows, self.cols))

    def spoil_index(self, negative: bool) -> None:
        """One column (CSC: row) out of range, in place."""
        case = self.case
        limit = case.m if case.kind == "scipy_csc" else case.n // case.block_n
        handle = self.handles(False)[1]
        handle[len(handle) // 2] = -1 if negative else limit


def _bytes(buffer: Tensor) -> Tensor:
    return buffer.view(torch.uint8)


def _copied(x: Any, how: str) -> Any:
    if how == "deepcopy":
        return copy.deepcopy(x)
    copied = copy.copy(x) if how == "copy" else pickle.loads(pickle.dumps(x))
    # Old torch (seen with 2.5) lists each sparse tensor that it copies so, and checks the list when
    # any tensor is loaded later. The case may have broken it by then: that is its purpose.
    getattr(torch._utils, "_sparse_tensors_to_validate", []).clear()
    return copied


def spoiled(case: Case, a: Any, b: Any) -> tuple[Any, Any]:
    """The operands with what is hostile in them."""
    lead = a.shape[:-2]

    def ones(*shape: int, dtype: Any = None) -> Any:
        x = torch.ones(*lead, *shape, dtype=dtype or dtype_of(case.dtype), device=case.on)
        return x.numpy() if case.numpy_operands else x

    others = {
        "k": lambda: (a, ones(case.k + 1, case.n)),
        "m": lambda: (ones(case.m + 1, case.k), b),
        "n": lambda: (a, ones(case.k, case.n + 1)),
        "dtype_b": lambda: (a, ones(case.k, case.n, dtype=wrong_dtype(case.dtype))),
        "one_dimension": lambda: (a.reshape(-1), b),
        "heads": lambda: (a[None] if case.heads is None else a[0:0].sum(0), b),
        "integer_a": lambda: (ones(case.m, case.k, dtype=torch.int64), b),
        "complex_a": lambda: (ones(case.m, case.k, dtype=torch.complex64), b),
        "sparse_a": lambda: (ones(case.m, case.k).to_sparse(), b),
        "meta_a": lambda: (ones(case.m, case.k).to("meta"), b),
    }
    make = others.get(str(case.hostile))
    return (a, b) if make is None else make()


def ordinary(case: Case) -> Case:
    return replace(case, hostile=None)
