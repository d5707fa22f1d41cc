"""The record of one GEMM variant at one shape."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.bench.record import Record


@dataclass(kw_only=True)
class GemmRecord(Record):
    """A record of GEMM: the shape, the arithmetic, the variant and what it was compiled to.

    kernel: the kernel of ours that computed it, "" where none did. baseline: the variant of cuBLAS
    that computes the same. error: relative Frobenius norm against float64, on random normal
    operands.
    """

    m: int
    n: int
    k: int
    dtype: str
    accumulate: str
    b_rows: str
    variant: str
    baseline: str
    kernel: str = ""
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None

    @property
    def name(self) -> str:
        return self.variant

    @property
    def case(self) -> tuple[object, ...]:
        return (*self.place, *self.arithmetic, self.shape)

    @property
    def arithmetic(self) -> tuple[str, str, str]:
        return (self.dtype, self.accumulate, self.b_rows)

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def is_cublas(self) -> bool:
        return self.variant.startswith("cublas")

    @property
    def is_rung(self) -> bool:
        """Whether it is a kernel by name, neither cuBLAS nor gemm's choice of one."""
        return not self.is_cublas and self.kernel in ("", self.variant)

    @property
    def tflops(self) -> float | None:
        """TFLOP/s of 2 m n k operations."""
        return 2e-9 * self.m * self.n * self.k / self.median_ms if self.median_ms else None
