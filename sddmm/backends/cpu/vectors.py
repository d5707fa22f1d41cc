"""Sums of rows in vectors of SIMD, which numba cannot be asked for; importing this module needs it.

Left to itself numba makes one vector of a sum's addends, which it must gather first, or none.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

# A product and a sum may be one instruction.
_CONTRACT = ("contract",)


def vector_sums(width: int, vectors: int, chains: int) -> Any:
    """A function for numba's code: (starts, first, count, indices, weights, offset, x, alpha, out,
    to, at) stores in out[to + i], for i below count, alpha times the sum of the rows of x at
    indices[j], each times weights[j - offset], for j from starts[first + i] to the next start.

    It computes `vectors` of so many columns, one after another from `at` on; the last end where
    rows of out do, and overlap others if need be: these must be no shorter than a vector. Each has
    so many sums that are independent of each other, as an addition takes several clocks, and which
    are added at last. Arrays must be C-contiguous; x may have more columns than out.
    """

    @intrinsic
    def add_rows(  # type: ignore[no-untyped-def]
        _context, starts, first, count, indices, weights, offset, x, alpha, out, to, at
    ):
        given = starts, first, count, indices, weights, offset, x, alpha, out, to, at
        if any(array.layout != "C" for array in (starts, indices, weights, x, out)):
            raise TypingError("arrays whose rows are summed must be C-contiguous")
        signature = types.void(*given)
        return signature, lambda *now: _Code(*now).build(width, vectors, chains)

    return add_rows


class _Code:
    """The code of one call, of the arguments that `vector_sums` lists."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.context, self.builder = context, builder
        given = list(zip(signature.args, arguments, strict=True))
        self.starts, self.indices, self.weights, self.x, self.out = (
            _Matrix(context, builder, *given[i]) for i in (0, 3, 4, 6, 8)
        )
        self.first, self.count, self.offset, self.to, self.at = (
            context.cast(builder, value, kind, types.intp)
            for kind, value in (given[i] for i in (1, 2, 5, 9, 10))
        )
        kind, alpha = given[7]
        self.alpha = context.cast(builder, alpha, kind, self.x.kind)

    def build(self, width: int, vectors: int, chains: int) -> Any:
        """The loop over rows. Returns what numba takes for None."""
        builder, vector = self.builder, ir.VectorType(self.x.element, width)
        columns = [self._first_column(v * width, width) for v in range(vectors)]
        alpha = self._in_all(self.alpha, vector)
        sums = [[self._new(vector) for _ in columns] for _ in range(chains)]
        with cgutils.for_range(builder, self.count) as loop:
            self._add_row(builder.add(self.first, loop.index), vector, columns, sums)
            row = self.out.row(builder.add(self.to, loop.index))
            for v, column in enumerate(columns):
                total = builder.load(sums[0][v])
                for chain in sums[1:]:
                    total = builder.fadd(total, builder.load(chain[v]))
                to = self._vector_at(row, column, vector)
                builder.store(builder.fmul(alpha, total), to, align=self.out.align)
        return self.context.get_dummy_value()

    def _first_column(self, after: int, width: int) -> Any:
        """That of the vector so many columns after `at`, or of the last."""
        builder = self.builder
        own = builder.add(self.at, self._number(after))
        last = builder.sub(self.out.columns(), self._number(width))
        return builder.select(builder.icmp_signed("<", own, last), own, last)

    def _add_row(self, row: Any, vector: Any, columns: list[Any], sums: list[list[Any]]) -> None:
        """The sums of the nonzeros of a row: each chain takes one at a time."""
        builder, chains = self.builder, self._number(len(sums))
        for chain in sums:
            for total in chain:
                builder.store(ir.Constant(vector, [0.0] * vector.count), total)
        begin = self.starts.number(row)
        count = builder.sub(self.starts.number(builder.add(row, self._number(1))), begin)
        rounds = builder.udiv(count, chains)
        with cgutils.for_range(builder, rounds) as loop:
            first = builder.add(begin, builder.mul(loop.index, chains))
            for i, chain in enumerate(sums):
                self._add(builder.add(first, self._number(i)), vector, columns, chain)
        done = builder.mul(rounds, chains)
        with cgutils.for_range(builder, builder.sub(count, done)) as loop:
            i = builder.add(begin, builder.add(done, loop.index))
            self._add(i, vector, columns, sums[0])

    def _add(self, i: Any, vector: Any, columns: list[Any], chain: list[Any]) -> None:
        """Adds nonzero i to the sums of a chain."""
        builder = self.builder
        row = self.x.row(self.indices.number(i))
        weight = self._in_all(self.weights.at(builder.sub(i, self.offset)), vector)
        for column, total in zip(columns, chain, strict=True):
            x = builder.load(self._vector_at(row, column, vector), align=self.x.align)
            product = builder.fmul(weight, x, flags=_CONTRACT)
            builder.store(builder.fadd(builder.load(total), product, flags=_CONTRACT), total)

    def _new(self, vector: Any) -> Any:
        """The address of a sum, which the compiler keeps in a register."""
        return cgutils.alloca_once(self.builder, vector)  # type: ignore[no-untyped-call]

    def _number(self, value: int) -> Any:
        return self.context.get_constant(types.intp, value)

    def _in_all(self, value: Any, vector: Any) -> Any:
        """A vector of so many times the value."""
        none = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(none, value, ir.IntType(32)(0))
        same = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
        return self.builder.shuffle_vector(first, none, same)

    def _vector_at(self, row: Any, column: Any, vector: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(row, [column]), vector.as_pointer())


class _Matrix:
    """A matrix, or a vector, whose rows are contiguous, in the code of a call."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self._context, self._builder = context, builder
        self._array = context.make_array(kind)(context, builder, value)
        self.kind, self.element = kind.dtype, context.get_value_type(kind.dtype)
        self.align = kind.dtype.bitwidth // 8

    def at(self, i: Any) -> Any:
        """Element i of a vector."""
        return self._builder.load(self._builder.gep(self._array.data, [i]))

    def number(self, i: Any) -> Any:
        """The same of integers."""
        return self._context.cast(self._builder, self.at(i), self.kind, types.intp)

    def row(self, i: Any) -> Any:
        """The address of row i."""
        pitch = self._builder.extract_value(self._array.strides, 0)
        bytes_before = self._builder.mul(i, pitch)
        return cgutils.pointer_add(  # type: ignore[no-untyped-call]
            self._builder, self._array.data, bytes_before
        )

    def columns(self) -> Any:
        """The number of columns."""
        return self._builder.extract_value(self._array.shape, 1)
