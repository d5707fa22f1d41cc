"""Calls graph_transformer_aggr of turbo-gnn (ICML 2026, arXiv 2605.31500), where it is installed.

https://pypi.org/project/turbo-gnn. Its "Q" belongs to the columns and its "K" to the rows of the
matrix, in the layout (rows, h, d); its backward adds by atomics.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from torch import Tensor

from experiments.attention.case import Case, heads_first, new_run, rows_first
from experiments.bench.methods import Run

IS_PEER = True

_COLUMNS = (32, 64, 128, 256)


def refuses(case: Case) -> str | None:
    if not case.device.startswith("cuda"):
        return "turbo_gnn computes on a GPU, not on a CPU"
    if case.m != case.n:
        return "turbo_gnn takes square matrices"
    if case.k not in _COLUMNS:
        return f"turbo_gnn computes d of {', '.join(map(str, _COLUMNS))}"
    found = imported()
    return found if isinstance(found, str) else None


def prepare(case: Case) -> Run:
    library = imported()
    assert not isinstance(library, str)
    by_row, by_column = case.pattern.by_row, case.pattern.by_column
    dtype = by_row.indptr.dtype
    graph = library.AdjacencyForwardBackwardWithNodeBuckets.from_csr(
        by_row.indptr, by_row.indices.to(dtype), by_column.indptr.to(dtype),
        by_column.indices.to(dtype),
    )  # fmt: skip

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = library.graph_transformer_aggr(graph, v, Q=k, K=q, V=v, scale=case.scale)
        return out

    return new_run(case, attend, rows_first, heads_first)


def imported() -> ModuleType | str:
    """The library, or why it cannot be imported; its extension is built for a release of torch."""
    try:
        return importlib.import_module("turbo_gnn")
    except (ImportError, OSError) as error:
        return f"turbo_gnn cannot be imported: {str(error).splitlines()[0]}"
