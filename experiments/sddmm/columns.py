"""What the columns of the CSV files of matrix objectives mean."""

from __future__ import annotations

from experiments.bench.page.tables import CASE, Groups

CASES = {
    "matrix": "name of the matrix, or its file",
    "m": "rows of S",
    "n": "columns of S",
    "nnz": "nonzeros of S",
    "sparsity": "fraction of the entries that S does not store",
    "k": "inner dimension; in SpMM d, the columns of the dense operand",
    "d": "columns of the dense operand",
    "dtype": "type of the dense operands",
    "heads": "products at one pattern",
    "seed": "seed of the dense operands",
    "transpose": "whether the product is by the transpose of S",
    "backward": "whether the gradients were computed too",
}
SHORT = frozenset({"matrix", "nnz", "k", "d", "dtype", "heads", "transpose", "backward"})

ON_PATTERN: Groups = {
    CASE: CASES,
    "times": {
        "gflops": "useful operations, 2 nnz k heads, over the median time, in 10^9 per second"
    },
}
PROBLEMS = {
    "matrix": CASES["matrix"],
    "class": "class of patterns",
    **CASES,
    "device": "the processor that computed, with torch's threads on a CPU",
}
