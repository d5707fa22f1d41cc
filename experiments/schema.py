"""The configuration: what may be set, its type and its range.

A matrix source is a dataclass that knows its size before it makes anything and how to load itself.
Its place in Hydra is the group `source`; the YAML files of the group `matrix` fill it in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import scipy.io
import scipy.sparse
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

import datasets

DTYPES = ("float16", "bfloat16", "float32", "float64")


class Size(NamedTuple):
    """rows, cols and nonzeros of a matrix; nnz None where only loading can tell."""

    rows: int
    cols: int
    nnz: int | None


def _require(condition: bool, key: str, rule: str, value: Any) -> None:
    if not condition:
        raise ValueError(f"{key} must be {rule}, got {value}")


@dataclass
class Source:
    """A matrix to sample with."""

    def size(self) -> Size:
        raise NotImplementedError

    def load(self) -> scipy.sparse.csr_array:
        raise NotImplementedError


@dataclass
class Uniform(Source):
    """Uniformly random; nnz, if given, counts instead of sparsity."""

    rows: int = MISSING
    cols: int = MISSING
    sparsity: float = 0.95
    nnz: int | None = None
    values: str = "ones"
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.rows >= 1 and self.cols >= 1, "matrix size", ">= 1x1", _by(self))
        _require(
            0 <= self.sparsity < 1, "sparsity", "a fraction in 0 <= sparsity < 1", self.sparsity
        )

    def size(self) -> Size:
        nnz = self.nnz
        if nnz is None:
            nnz = datasets.nnz_of(self.rows, self.cols, self.sparsity)
        return Size(self.rows, self.cols, nnz)

    def load(self) -> scipy.sparse.csr_array:
        options = {"values": self.values, "seed": self.seed}
        return datasets.cached(datasets.uniform, **self.size()._asdict(), **options)


@dataclass
class Rmat(Source):
    """Recursive (R-MAT) graph."""

    rows: int = MISSING
    cols: int = MISSING
    nnz: int = MISSING
    a: float = 0.57
    b: float = 0.19
    c: float = 0.19
    values: str = "ones"
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.rows >= 1 and self.cols >= 1, "matrix size", ">= 1x1", _by(self))

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.nnz)

    def load(self) -> scipy.sparse.csr_array:
        return datasets.cached(datasets.rmat, **asdict(self))


@dataclass
class PowerLaw(Source):
    """Power-law rows and columns, with one very long row if `longest_row` is set."""

    rows: int = MISSING
    cols: int = MISSING
    nnz: int = MISSING
    exponent: float = 2.5
    longest_row: int = 0
    values: str = "ones"
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.rows >= 1 and self.cols >= 1, "matrix size", ">= 1x1", _by(self))

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.nnz)

    def load(self) -> scipy.sparse.csr_array:
        return datasets.cached(datasets.power_law, **asdict(self))


@dataclass
class Banded(Source):
    """All entries with |i - j| <= bandwidth."""

    rows: int = MISSING
    cols: int = MISSING
    bandwidth: int = MISSING
    values: str = "ones"
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.rows >= 1 and self.cols >= 1, "matrix size", ">= 1x1", _by(self))
        _require(self.bandwidth >= 0, "matrix.bandwidth", ">= 0", self.bandwidth)

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.rows * min(self.cols, 2 * self.bandwidth + 1))

    def load(self) -> scipy.sparse.csr_array:
        return datasets.cached(datasets.banded, **asdict(self))


@dataclass
class BlockDiagonal(Source):
    """Dense squares down the diagonal."""

    rows: int = MISSING
    cols: int = MISSING
    block: int = MISSING
    values: str = "ones"
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.rows >= 1 and self.cols >= 1, "matrix size", ">= 1x1", _by(self))
        _require(self.block >= 1, "matrix.block", ">= 1", self.block)

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.rows * min(self.cols, self.block))

    def load(self) -> scipy.sparse.csr_array:
        return datasets.cached(datasets.block_diagonal, **asdict(self))


@dataclass
class Fem(Source):
    """Finite-element stencil on an nx x ny x nz grid, `block` unknowns a node."""

    nx: int = MISSING
    ny: int = MISSING
    nz: int = MISSING
    block: int = 3
    values: str = "ones"
    seed: int = 0

    def __post_init__(self) -> None:
        smallest = min(self.nx, self.ny, self.nz, self.block)
        _require(smallest >= 1, "matrix.nx, ny, nz, block", ">= 1", smallest)

    def size(self) -> Size:
        rows = self.nx * self.ny * self.nz * self.block
        return Size(rows, rows, rows * 27 * self.block)

    def load(self) -> scipy.sparse.csr_array:
        return datasets.cached(datasets.fem, **asdict(self))


@dataclass
class File(Source):
    """A .mtx, .mtx.gz, .smtx or .npz file."""

    path: str = MISSING

    def size(self) -> Size:
        try:
            rows, cols, entries, _, _, symmetry = scipy.io.mminfo(self.path)
        except (OSError, ValueError, EOFError):  # another kind, or broken: reading it will tell
            return Size(0, 0, None)
        return Size(rows, cols, entries if symmetry == "general" else 2 * entries)

    def load(self) -> scipy.sparse.csr_array:
        return datasets.read(self.path)


def _by(source: Any) -> str:
    return f"{source.rows}x{source.cols}"


SOURCES: dict[str, type[Source]] = {
    "uniform": Uniform,
    "rmat": Rmat,
    "power_law": PowerLaw,
    "banded": Banded,
    "block_diagonal": BlockDiagonal,
    "fem": Fem,
    "file": File,
}


@dataclass
class Timing:
    """When a method has been timed enough, and when it takes too long."""

    min_samples: int = 3
    max_samples: int = 50
    seconds: float = 1.0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        _require(
            1 <= self.min_samples <= self.max_samples,
            "timing.min_samples",
            f"in 1..max_samples = {self.max_samples}",
            self.min_samples,
        )
        _require(self.seconds >= 0, "timing.seconds", ">= 0", self.seconds)
        _require(self.timeout_s > 0, "timing.timeout_s", "> 0", self.timeout_s)


@dataclass
class Config:
    """One run: a matrix, an inner dimension k, and the methods to compare on it.

    sparsity, if given, replaces that of a uniform matrix. methods: names, or empty for all.
    force: measure again what the record store already holds.
    """

    matrix: Any = MISSING
    sparsity: float | None = None
    k: int = 256
    dtype: str = "float32"
    seed: int = 0
    device: str = "auto"
    methods: list[str] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    records: str = "results/records.jsonl"
    force: bool = False

    def __post_init__(self) -> None:
        _require(self.k >= 1, "k", ">= 1", self.k)
        _require(self.dtype in DTYPES, "dtype", f"one of {', '.join(DTYPES)}", self.dtype)
        if self.sparsity is not None:
            rule = "a fraction in 0 <= sparsity < 1"
            _require(0 <= self.sparsity < 1, "sparsity", rule, self.sparsity)


@dataclass
class ReportConfig:
    """records: the files to merge. output: the folder for report.md, report.csv and the plots."""

    records: list[str] = field(default_factory=lambda: ["results/records.jsonl"])
    output: str = "results/report"
    plots: bool = True


def register() -> None:
    """Tell Hydra the types; call before composing."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    store.store(name="report_schema", node=ReportConfig)
    for name, source in SOURCES.items():
        store.store(group="source", name=name, node=source)


def register_matrix(name: str, source: str, **values: Any) -> None:
    """Make `matrix=name` an option without a YAML of its own."""
    defaults = [{"/source@_here_": source}, "_self_"]
    ConfigStore.instance().store(group="matrix", name=name, node={"defaults": defaults, **values})
