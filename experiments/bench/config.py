"""The configuration: what may be set, its type and its range.

A matrix source is a dataclass that knows its size before it makes anything and how to load itself.
Its place in Hydra is the group `source`; the YAML files of the group `matrix` fill it in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple

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


def refuse_absurd(config: Any, prefix: str = "") -> None:
    """Raise ValueError for a number that no part of a run can take, by its key."""
    for f in fields(config):
        key, value = f"{prefix}{f.name}", getattr(config, f.name)
        if is_dataclass(value):
            refuse_absurd(value, f"{key}.")
        elif isinstance(value, float):
            _require(math.isfinite(value), key, "finite", value)
        elif isinstance(value, int):
            _require(abs(value) < 1 << 63, key, "below 2^63", value)
            _require(f.name != "seed" or value >= 0, key, ">= 0", value)


@dataclass
class Source:
    """A matrix to sample with."""

    def size(self) -> Size:
        raise NotImplementedError

    def load(self) -> scipy.sparse.csr_array:
        raise NotImplementedError

    def loader(self) -> Callable[..., scipy.sparse.csr_array]:
        """The function of datasets that makes the matrix."""
        raise NotImplementedError

    def definition(self) -> dict[str, Any]:
        """What makes the matrix what it is."""
        return {"source": type(self).__name__, **asdict(self)}


@dataclass
class Generated(Source):
    """A matrix that `generator`, a function of datasets, makes from this source's fields."""

    generator: ClassVar[Callable[..., scipy.sparse.csr_array]]
    values: str = "ones"
    seed: int = 0

    def load(self) -> scipy.sparse.csr_array:
        return datasets.cached(self.loader(), **asdict(self))

    def loader(self) -> Callable[..., scipy.sparse.csr_array]:
        return type(self).generator


@dataclass
class Sized(Generated):
    """A generated matrix whose size is given."""

    rows: int = MISSING
    cols: int = MISSING

    def __post_init__(self) -> None:
        size = f"{self.rows}x{self.cols}"
        _require(self.rows >= 1 and self.cols >= 1, "matrix size", ">= 1x1", size)


@dataclass
class Uniform(Sized):
    """Uniformly random; nnz, if given, counts instead of sparsity."""

    generator = datasets.uniform
    sparsity: float = 0.95
    nnz: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "a fraction in 0 <= sparsity < 1"
        _require(0 <= self.sparsity < 1, "sparsity", rule, self.sparsity)

    def size(self) -> Size:
        nnz = self.nnz
        if nnz is None:
            nnz = datasets.nnz_of(self.rows, self.cols, self.sparsity)
        return Size(self.rows, self.cols, nnz)

    def load(self) -> scipy.sparse.csr_array:
        options = {"values": self.values, "seed": self.seed}
        return datasets.cached(datasets.uniform, **self.size()._asdict(), **options)


@dataclass
class Rmat(Sized):
    """Recursive (R-MAT) graph."""

    generator = datasets.rmat
    nnz: int = MISSING
    a: float = 0.57
    b: float = 0.19
    c: float = 0.19

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.nnz)


@dataclass
class PowerLaw(Sized):
    """Power-law rows and columns, with one very long row if `longest_row` is set."""

    generator = datasets.power_law
    nnz: int = MISSING
    exponent: float = 2.5
    longest_row: int = 0

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.nnz)


@dataclass
class Banded(Sized):
    """All entries with |i - j| <= bandwidth."""

    generator = datasets.banded
    bandwidth: int = MISSING

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.rows * min(self.cols, 2 * self.bandwidth + 1))


@dataclass
class BlockDiagonal(Sized):
    """Dense squares down the diagonal."""

    generator = datasets.block_diagonal
    block: int = MISSING

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.rows * min(self.cols, self.block))


@dataclass
class Fem(Generated):
    """Finite-element stencil on an nx x ny x nz grid, `block` unknowns a node."""

    generator = datasets.fem
    nx: int = MISSING
    ny: int = MISSING
    nz: int = MISSING
    block: int = 3

    def size(self) -> Size:
        rows = self.nx * self.ny * self.nz * self.block
        return Size(rows, rows, rows * 27 * self.block)


@dataclass
class File(Source):
    """A .mtx, .mtx.gz, .smtx or .npz file."""

    path: str = MISSING

    def size(self) -> Size:
        return Size(*datasets.read_size(self.path))

    def load(self) -> scipy.sparse.csr_array:
        return datasets.read(self.path)

    def loader(self) -> Callable[..., scipy.sparse.csr_array]:
        return datasets.read

    def definition(self) -> dict[str, Any]:
        """The path says where the matrix was found; the digest says what it is."""
        return super().definition() | {"digest": datasets.file_digest(self.path)}


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
        # The longest that a timer of the system takes is far beyond; a run is not.
        in_range = 0 < self.timeout_s <= 1e9
        _require(in_range, "timing.timeout_s", "in 0 < timeout_s <= 1e9", self.timeout_s)


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
    """records: the files to merge. output: the folder for report.md, report.csv and the plots.

    compare: two commits to set side by side instead, in compare.md.
    """

    records: list[str] = field(default_factory=lambda: ["results/records.jsonl"])
    output: str = "results/report"
    plots: bool = True
    compare: list[str] = field(default_factory=list)


@dataclass
class GemmConfig:
    """Every GEMM variant against cuBLAS at one shape, "MxNxK".

    b_rows: b is stored as k rows of n, or as n rows of k. variants: names, or empty for all that
    compute this dtype with sums in `accumulate`. force: measure again what the store holds.
    """

    shape: str = "4096x4096x4096"
    dtype: str = "float16"
    accumulate: str = "fp32"
    b_rows: str = "k"
    variants: list[str] = field(default_factory=list)
    seed: int = 0
    timing: Timing = field(default_factory=lambda: Timing(max_samples=10, seconds=0.3))
    records: str = "results/gemm.jsonl"
    force: bool = False

    def __post_init__(self) -> None:
        sizes = self.shape.split("x")
        right = len(sizes) == 3 and all(size.isdecimal() and int(size) >= 1 for size in sizes)
        _require(right, "shape", "three sizes MxNxK", self.shape)
        dtypes = DTYPES[:3]
        _require(self.dtype in dtypes, "dtype", f"one of {', '.join(dtypes)}", self.dtype)
        _require(self.accumulate in ("fp32", "fp16"), "accumulate", "fp32 or fp16", self.accumulate)
        _require(self.b_rows in ("k", "n"), "b_rows", "k or n", self.b_rows)

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, n, k = (int(size) for size in self.shape.split("x"))
        return m, n, k


@dataclass
class LadderConfig:
    """records: the files to merge. output: the folder for the tables, the CSV and the plot."""

    records: list[str] = field(default_factory=lambda: ["results/gemm.jsonl"])
    output: str = "results/ladder"
    plots: bool = True


@dataclass
class LaunchConfig:
    """output: the folder for launch.json and launch.md. batches of `calls` calls are timed."""

    output: str = "results/launch"
    batches: int = 50
    calls: int = 200

    def __post_init__(self) -> None:
        _require(self.batches >= 1, "batches", ">= 1", self.batches)
        _require(1 <= self.calls <= 500, "calls", "in 1..500, as the queue is short", self.calls)


# By the name of the YAML file of conf/ that fills it in.
CONFIGS: dict[str, type] = {
    "config": Config,
    "report": ReportConfig,
    "gemm": GemmConfig,
    "ladder": LadderConfig,
    "launch": LaunchConfig,
}


def register() -> None:
    """Tell Hydra the types; call before composing."""
    store = ConfigStore.instance()
    for name, kind in CONFIGS.items():
        store.store(name=f"{name}_schema", node=kind)
    for name, source in SOURCES.items():
        store.store(group="source", name=name, node=source)


def register_matrix(name: str, source: str, **values: Any) -> None:
    """Make `matrix=name` an option without a YAML of its own."""
    defaults = [{"/source@_here_": source}, "_self_"]
    ConfigStore.instance().store(group="matrix", name=name, node={"defaults": defaults, **values})
