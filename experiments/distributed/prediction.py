"""The time of messages on 8, 64 and 512 GPUs by the formulas, from rates that were measured.

Measured: how many nonzeros an H200 samples in a second (a committed record), and at which rate two
H200 of one host write into each other's memory (`sddmm/distributed/volumes.py`). Assumed: what a
GPU receives from another host, and that the nonzeros are spread evenly.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from experiments.bench import report
from experiments.bench.digest import ROOT
from experiments.bench.table import figure
from experiments.sddmm.objective import SDDMM
from experiments.sddmm.record import Record
from sddmm.distributed.blocks import Counts
from sddmm.distributed.volumes import LINKS, Link, Request, predicted_us, received_bytes

GPUS = (8, 64, 512)
PER_HOST = 8
ROWS, K = 1 << 24, 256
DEGREES = (50, 500)
RECORDS = "docs/results/h200/peers/records.jsonl"
# The rates of two problems with this K: the largest one whose B, 26 MB, stays in the L2, and one
# whose B, 281 MB, does not, as no panel of a large B does; its kernels take longer and hide more.
DTYPE = "float16"
MATRICES = {"B in L2": "u50k_99", "B beyond L2": "u549k"}

# One port of 400 Gb/s for each GPU, as hosts of eight H200 are built.
ACROSS_HOSTS = Link("50 GB/s between hosts, assumed", 50e3, LINKS["nccl"].message_us, 4.3e6)

_REQUEST = Request("sddmm", K, 1, 2, 4, 2, 1)


class Layout(NamedTuple):
    """p GPUs with c replicas of each block of rows; degree: nonzeros per row."""

    gpus: int
    replicas: int
    degree: float

    @property
    def link(self) -> Link:
        return LINKS["memory"] if self.gpus <= PER_HOST else ACROSS_HOSTS

    @property
    def counts(self) -> Counts:
        """The numbers of equal parts."""
        p, c = self.gpus, self.replicas
        rows, values = ROWS // p, round(ROWS * self.degree / p / c)
        return Counts(c, [rows] * p, [rows] * p, [], [[values] * c] * p)

    @property
    def messages_us(self) -> float:
        return predicted_us(self.counts, "ring", _REQUEST, self.link)

    @property
    def share(self) -> float:
        """The elements of B and A that a GPU receives, in units of n * K."""
        received = received_bytes(self._replace(degree=0).counts, "ring", _REQUEST)
        return received[0] / (ROWS * K * _REQUEST.item)

    def compute_us(self, nonzeros_per_us: float) -> float:
        return ROWS * self.degree / self.gpus / nonzeros_per_us


def rows() -> list[dict[str, str]]:
    """A row for one ring of all GPUs, and for the number of replicas with the shortest messages."""
    rates = {name: nonzeros_per_us(matrix) for name, matrix in MATRICES.items()}
    slow = rates["B beyond L2"]
    table = []
    for gpus in GPUS:
        layouts = [Layout(gpus, c, DEGREES[0]) for c in _divisors(gpus)]
        best = min(layouts, key=lambda layout: layout.messages_us)
        for layout in (layouts[0], best):
            table.append(
                {
                    "GPUs": str(gpus),
                    "replicas": str(layout.replicas),
                    "received, n K": f"{layout.share:.3f}",
                    "messages ms": figure(layout.messages_us / 1e3),
                    **{
                        f"hidden from degree, {name}": _hidden_from(layout, rate)
                        for name, rate in rates.items()
                    },
                    **{f"efficiency, degree {d}": _efficiency(layout, d, slow) for d in DEGREES},
                }
            )
    return table


def nonzeros_per_us(matrix: str) -> float:
    """The rate of one GPU that was measured on a matrix."""
    records: list[Record] = report.merge(SDDMM, [str(ROOT / RECORDS)])
    (record,) = (
        r for r in records if (r.matrix, r.k, r.dtype, r.method) == (matrix, K, DTYPE, SDDMM.ours)
    )
    return record.nnz / (1e3 * statistics.median(record.samples_ms))


def _hidden_from(layout: Layout, rate: float) -> str:
    """The average degree from which the kernels take as long as the messages."""
    without, with_one = (layout._replace(degree=d).messages_us for d in (0, 1))
    saved = layout._replace(degree=1).compute_us(rate) - (with_one - without)
    return figure(without / saved) if saved > 0 else "never"


def _efficiency(layout: Layout, degree: int, rate: float) -> str:
    """The share of the time in which a GPU computes if messages and kernels overlap wholly."""
    layout = layout._replace(degree=degree)
    compute = layout.compute_us(rate)
    return f"{compute / max(compute, layout.messages_us):.0%}"


def _divisors(p: int) -> list[int]:
    return [c for c in range(1, p + 1) if p % c == 0]
