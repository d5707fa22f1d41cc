"""Turns records of GEMM into the tables, the Markdown and the CSV of the ladder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments.bench import table
from experiments.bench.page.tables import CASE, Groups, Table
from experiments.bench.report import provenance
from experiments.gemm import published
from experiments.gemm.methods import ALL
from experiments.gemm.record import GemmRecord

_PUBLISHED = (
    ("hgemm", "NVIDIA L20", ["16384x8192x2048", "16384x8192x4096", "16384x8192x8192"]),
    ("sgemm", "not stated", ["2048x2048x1024", "4096x4096x512", "4096x4096x1024"]),
)

COLUMNS: Groups = {
    CASE: {
        "variant": "a kernel of the ladder, or cuBLAS",
        "m": "rows of A",
        "n": "columns of B",
        "k": "inner dimension",
        "dtype": "type of the operands",
        "accumulate": "type of the sums",
        "b_rows": "whether B is stored as rows of k or of n",
    },
    "times": {
        "tflops": "2 m n k operations over the median time, in 10^12 per second",
        "of_cublas": "fraction of cuBLAS's speed in the same session",
    },
    "compiled": {
        "kernel": "the kernel that computed it",
        "registers": "registers of a thread",
        "shared_bytes": "shared memory of a block",
        "spill_bytes": "bytes of registers that a thread spills",
    },
}
_LONG = frozenset({"shared KiB", "spilled", "error"})
SHORT = frozenset(COLUMNS[CASE]) | {"tflops", "of_cublas"}


def sections(records: Sequence[GemmRecord]) -> list[list[GemmRecord]]:
    """The records grouped by device and arithmetic."""
    keys = dict.fromkeys((*r.place, *r.arithmetic) for r in records)
    return [[r for r in records if (*r.place, *r.arithmetic) == key] for key in keys]


def title(records: Sequence[GemmRecord]) -> str:
    r = records[0]
    device = r.environment.get("device", "unknown device")
    return f"{device}: {r.dtype}, sums in {r.accumulate}, B in rows of {r.b_rows}"


def of_cublas(records: Iterable[GemmRecord]) -> dict[str, float]:
    """The fraction of cuBLAS's speed in the same session, by key."""
    records = list(records)
    cublas = {(r.session, r.variant): r.tflops for r in records if r.is_cublas}
    return {
        r.key: r.tflops / base
        for r in records
        if r.tflops and (base := cublas.get((r.session, r.baseline)))
    }


def rows(records: Sequence[GemmRecord]) -> list[dict[str, str]]:
    """One row per variant of a session, every cell as text."""
    part = of_cublas(records)
    lines: list[dict[str, str]] = []
    previous: float | None = None
    for r in records:
        gain = r.tflops / previous if r.tflops and previous else None
        lines.append(
            {
                "variant": r.variant if r.is_rung or r.is_cublas else f"{r.variant}: {r.kernel}",
                "status": r.status,
                "time ms": "" if r.median_ms is None else f"{r.median_ms:.3f}",
                "TFLOP/s": "" if r.tflops is None else f"{r.tflops:.1f}",
                "of cuBLAS": f"{part[r.key]:.1%}" if r.key in part else "",
                "of previous": "" if gain is None else f"{gain:.0%}",
                "registers": _number(r.registers),
                "shared KiB": "" if r.shared_bytes is None else f"{r.shared_bytes / 1024:.1f}",
                "spilled": _number(r.spill_bytes),
                "error": "" if r.error is None else f"{r.error:.1e}",
            }
        )
        if r.tflops and r.is_rung:
            previous = r.tflops
    return lines


def _short(lines: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The cells that a person reads; the CSV has all."""
    return [{name: cell for name, cell in row.items() if name not in _LONG} for row in lines]


def notes(records: Sequence[GemmRecord]) -> list[str]:
    """The reasons of rows without a time."""
    return [f"{r.variant}: {r.status}: {r.reason}" for r in records if r.reason]


def as_summary(records: Sequence[GemmRecord]) -> str:
    """A table for each device and arithmetic."""
    texts = [f"**{title(own)}**\n\n{table.as_text(_summary(own))}" for own in sections(records)]
    return "\n\n".join(texts) + "\n"


def tables(records: Sequence[GemmRecord]) -> list[Table]:
    """A table of the HTML page for each device and arithmetic."""
    note = "TFLOP/s by shape, and the part of cuBLAS's in the same session."
    return [Table(title(own), _summary(own), note=note) for own in sections(records)]


def _summary(records: Sequence[GemmRecord]) -> list[dict[str, str]]:
    """A row per variant, a column per shape: TFLOP/s and the part of cuBLAS's.

    In the ladder's order; variants of the past stand last.
    """
    part = of_cublas(records)
    shapes = list(dict.fromkeys(r.shape for r in records))
    order = {name: index for index, name in enumerate(ALL)}
    variants = dict.fromkeys(r.variant for r in records)
    lines = []
    for variant in sorted(variants, key=lambda name: order.get(name, len(order))):
        own = {r.shape: r for r in records if r.variant == variant}
        registers = {r.registers for r in own.values()}  # gemm chooses a kernel for each shape
        same = registers.pop() if len(registers) == 1 else None
        cells = {shape: _cell(own.get(shape), part) for shape in shapes}
        lines.append({"variant": variant, **cells, "registers": _number(same)})
    return lines


def as_markdown(records: Sequence[GemmRecord]) -> str:
    """The report as Markdown: the environments, a table per shape, and the published figures."""
    lines = ["# The GEMM ladder", "", *provenance(list(records))]
    for section in sections(records):
        for shape in dict.fromkeys(r.shape for r in section):
            own = [r for r in section if r.shape == shape]
            lines += ["", f"## {title(own)}, {shape}", "", table.as_text(_short(rows(own)))]
            lines += [f"  {note}" for note in notes(own)]
    for family, gpu, shapes in _PUBLISHED:
        lines += ["", f"## Published {family} figures (GPU: {gpu}), TFLOP/s", ""]
        lines += [
            f"From the logs of [LeetCUDA]({published.SOURCE}). Another GPU, and its HGEMM sums in "
            f"halves: context, not comparison.",
            "",
        ]
        best = published.best(family, shapes, gpu)
        lines.append(table.as_text([_published_row(name, best[name], shapes) for name in best]))
    return "\n".join(lines) + "\n"


def csv_lines(records: Sequence[GemmRecord]) -> list[dict[str, object]]:
    """A line per record with every figure at full precision."""
    part = of_cublas(records)
    return [
        {
            "device": r.environment.get("device", ""),
            "m": r.m,
            "n": r.n,
            "k": r.k,
            "dtype": r.dtype,
            "accumulate": r.accumulate,
            "b_rows": r.b_rows,
            "variant": r.variant,
            "kernel": r.kernel,
            "status": r.status,
            "reason": r.reason,
            "median_ms": r.median_ms,
            "samples": len(r.samples_ms),
            "tflops": r.tflops,
            "of_cublas": part.get(r.key),
            "error": r.error,
            "registers": r.registers,
            "shared_bytes": r.shared_bytes,
            "spill_bytes": r.spill_bytes,
            "session": r.session,
            "date": r.date,
        }
        for r in records
    ]


def _published_row(name: str, by_shape: dict[str, float], shapes: list[str]) -> dict[str, str]:
    cells = {shape: f"{by_shape[shape]:.1f}" if shape in by_shape else "" for shape in shapes}
    return {"variant": name, **cells}


def _cell(record: GemmRecord | None, part: dict[str, float]) -> str:
    if record is None or record.tflops is None:
        return "" if record is None else record.status
    share = f" ({part[record.key]:.0%})" if record.key in part else ""
    return f"{record.tflops:.1f}{share}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
