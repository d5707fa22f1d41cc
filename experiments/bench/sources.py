"""Matrix sources: dataclasses that generate or read a matrix.

A source knows its size before it generates or reads anything. Its Hydra group is `source`; the YAML
files of the group `matrix` fill it in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import scipy.sparse
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

import datasets
from experiments.bench.keys import Rule, at_least, check, key, one_of, require

_VALUES = one_of("ones", "uniform")
_FRACTION = Rule("a fraction in 0 <= sparsity < 1", lambda value: 0 <= value < 1)


def _key(default: Any, text: str, example: str, rule: Rule | None = None) -> Any:
    return key(default, text, f"matrix.{example}", rule)


class Size(NamedTuple):
    """rows, cols and nonzeros of a matrix; nnz is None where only loading shows it."""

    rows: int
    cols: int
    nnz: int | None


@dataclass
class Source:
    """A matrix to sample with."""

    def size(self) -> Size:
        raise NotImplementedError

    def load(self) -> scipy.sparse.csr_array:
        raise NotImplementedError

    def loader(self) -> Callable[..., scipy.sparse.csr_array]:
        """The function of `datasets` that generates or reads the matrix."""
        raise NotImplementedError

    def definition(self) -> dict[str, Any]:
        """The fields that determine the matrix."""
        return {"source": type(self).__name__, **asdict(self)}


@dataclass
class Generated(Source):
    """A matrix that `generator`, a function of `datasets`, generates from the fields."""

    generator: ClassVar[Callable[..., scipy.sparse.csr_array]]
    values: str = _key(
        "ones",
        "Stored values: ones, or uniform in [1, 10).",
        "values=uniform",
        one_of("ones", "uniform"),
    )
    seed: int = _key(0, "The seed of the generator.", "seed=1", at_least(0))

    def __post_init__(self) -> None:
        check(self, "matrix.")

    def load(self) -> scipy.sparse.csr_array:
        return datasets.cached(self.loader(), **asdict(self))

    def loader(self) -> Callable[..., scipy.sparse.csr_array]:
        return type(self).generator


@dataclass
class Sized(Generated):
    """A generated matrix whose size is given."""

    rows: int = _key(MISSING, "Rows.", "rows=5000")
    cols: int = _key(MISSING, "Columns.", "cols=5000")

    def __post_init__(self) -> None:
        super().__post_init__()
        size = f"{self.rows}x{self.cols}"
        require(self.rows >= 1 and self.cols >= 1, "matrix size", ">= 1x1", size)


@dataclass
class Uniform(Sized):
    """Uniformly random; nnz, if given, counts instead of sparsity."""

    generator = datasets.uniform
    sparsity: float = _key(0.95, "Fraction that is not stored.", "sparsity=0.99", _FRACTION)
    nnz: int | None = _key(None, "Nonzeros; if given, it counts instead of sparsity.", "nnz=40000")

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
    nnz: int = _key(MISSING, "Nonzeros.", "nnz=40000")
    a: float = _key(0.57, "Probability of the upper left quadrant.", "a=0.5")
    b: float = _key(0.19, "Probability of the upper right quadrant.", "b=0.2")
    c: float = _key(0.19, "Probability of the lower left quadrant.", "c=0.2")

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.nnz)


@dataclass
class HashedRmat(Rmat):
    """R-MAT graph made by hashes, which a GPU makes itself in a second; for large ones."""

    generator = datasets.hashed_rmat
    shuffled: bool = _key(
        True, "Whether rows and columns are numbered anew at random.", "shuffled=false"
    )

    def on_device(self, device: str) -> tuple[Any, Any]:
        """crow_indices and col_indices as torch tensors of a device."""
        fields = {name: value for name, value in asdict(self).items() if name != "values"}
        return datasets.hashed_rmat_indices(**fields, device=device)


@dataclass
class PowerLaw(Sized):
    """Power-law rows and columns, with one very long row if `longest_row` is set."""

    generator = datasets.power_law
    nnz: int = _key(MISSING, "Nonzeros.", "nnz=40000")
    exponent: float = _key(2.5, "1: uniform; more: concentrated in few rows.", "exponent=2.1")
    longest_row: int = _key(0, "Nonzeros of one row, at least.", "longest_row=100")

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.nnz)


@dataclass
class Banded(Sized):
    """All entries with |i - j| <= bandwidth."""

    generator = datasets.banded
    bandwidth: int = _key(MISSING, "Largest |i - j| of an entry.", "bandwidth=8")

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.rows * min(self.cols, 2 * self.bandwidth + 1))


@dataclass
class BlockDiagonal(Sized):
    """Dense squares down the diagonal."""

    generator = datasets.block_diagonal
    block: int = _key(MISSING, "Rows of a dense square.", "block=16")

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.rows * min(self.cols, self.block))


@dataclass
class Fem(Generated):
    """Finite-element stencil on an nx x ny x nz grid, `block` unknowns a node."""

    generator = datasets.fem
    nx: int = _key(MISSING, "Grid points along x.", "nx=20")
    ny: int = _key(MISSING, "Grid points along y.", "ny=20")
    nz: int = _key(MISSING, "Grid points along z.", "nz=20")
    block: int = _key(3, "Unknowns of a node.", "block=1")

    def size(self) -> Size:
        rows = self.nx * self.ny * self.nz * self.block
        return Size(rows, rows, rows * 27 * self.block)


@dataclass
class StarStencil(Generated):
    """5-point stencil of a plane, or 7-point stencil of a grid in space."""

    generator = datasets.star_stencil
    nx: int = _key(MISSING, "Grid points along x.", "nx=20")
    ny: int = _key(MISSING, "Grid points along y.", "ny=20")
    nz: int = _key(1, "Grid points along z.", "nz=20")

    def size(self) -> Size:
        points = self.nx * self.ny * self.nz
        return Size(points, points, 7 * points)


@dataclass
class SmallGraphs(Generated):
    """Many small connected graphs, one after another on the diagonal."""

    generator = datasets.small_graphs
    length: int = _key(MISSING, "Rows, and columns.", "length=4096")
    graphs: int = _key(MISSING, "How many graphs there are.", "graphs=64")
    bonds: int = _key(MISSING, "Edges besides those that connect each graph.", "bonds=100")

    def size(self) -> Size:
        return Size(self.length, self.length, 2 * (self.length - self.graphs + self.bonds))


@dataclass
class NearestNeighbors(Generated):
    """k-nearest-neighbour graph of random points."""

    generator = datasets.nearest_neighbors
    points: int = _key(MISSING, "How many points there are.", "points=4096")
    neighbors: int = _key(MISSING, "Neighbours of a point, itself included.", "neighbors=8")
    dimensions: int = _key(3, "Dimensions of the cube that holds the points.", "dimensions=2")

    def size(self) -> Size:
        return Size(self.points, self.points, self.points * self.neighbors)


@dataclass
class PopularColumns(Sized):
    """Bipartite graph with popular columns."""

    generator = datasets.popular_columns
    nnz: int = _key(MISSING, "Nonzeros.", "nnz=40000")
    exponent: float = _key(3.0, "1: uniform; more: concentrated in few rows.", "exponent=2.1")

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.nnz)


@dataclass
class OneLongColumn(Sized):
    """Uniform, with one column of `length` nonzeros."""

    generator = datasets.one_long_column
    nnz: int = _key(MISSING, "Nonzeros.", "nnz=40000")
    length: int = _key(MISSING, "Nonzeros of the long column.", "length=100")

    def size(self) -> Size:
        return Size(self.rows, self.cols, self.nnz)


@dataclass
class Causal(Sized):
    """The lower triangle."""

    generator = datasets.causal

    def size(self) -> Size:
        triangle = min(self.rows, self.cols) * (min(self.rows, self.cols) + 1) // 2
        return Size(self.rows, self.cols, triangle + max(0, self.cols - self.rows) * self.rows)


@dataclass
class PackedCausal(Generated):
    """Causal masks of several sequences on the diagonal."""

    generator = datasets.packed_causal
    length: int = _key(MISSING, "Rows, and columns.", "length=4096")
    sequences: int = _key(MISSING, "How many sequences there are.", "sequences=4")

    def size(self) -> Size:
        longest = self.length - self.sequences + 1
        nnz = longest * (longest + 1) // 2 + self.sequences - 1
        return Size(self.length, self.length, nnz)


@dataclass
class SlidingWindow(Generated):
    """A band, with rows and columns that are whole."""

    generator = datasets.sliding_window
    length: int = _key(MISSING, "Rows, and columns.", "length=4096")
    window: int = _key(MISSING, "Largest |i - j| of an entry.", "window=64")
    global_tokens: int = _key(0, "Rows and columns that are whole.", "global_tokens=4")

    def size(self) -> Size:
        width = min(self.length, 2 * self.window + 1 + 2 * self.global_tokens)
        return Size(self.length, self.length, self.length * width)


@dataclass
class DilatedWindow(Generated):
    """A band of which each dilation-th diagonal is stored."""

    generator = datasets.dilated_window
    length: int = _key(MISSING, "Rows, and columns.", "length=4096")
    window: int = _key(MISSING, "Stored diagonals on each side.", "window=64")
    dilation: int = _key(MISSING, "Steps from one diagonal to the next.", "dilation=4")

    def size(self) -> Size:
        return Size(self.length, self.length, self.length * min(self.length, 2 * self.window + 1))


@dataclass
class RandomBlocks(Sized):
    """Dense squares of a grid, drawn at random."""

    generator = datasets.random_blocks
    block: int = _key(MISSING, "Rows of a dense square.", "block=16")
    density: float = _key(MISSING, "Fraction of the squares that is stored.", "density=0.1")

    def size(self) -> Size:
        down, across = -(-self.rows // self.block), -(-self.cols // self.block)
        nnz = (round(down * across * self.density)) * self.block**2
        return Size(self.rows, self.cols, nnz)


@dataclass
class BlocksAndNoise(Generated):
    """Squares down the diagonal, and uniform noise."""

    generator = datasets.blocks_and_noise
    length: int = _key(MISSING, "Rows, and columns.", "length=4096")
    block: int = _key(MISSING, "Rows of a dense square.", "block=16")
    noise_nnz: int = _key(MISSING, "Nonzeros of the noise.", "noise_nnz=1000")
    fill: float = _key(1.0, "Probability of an entry of a square.", "fill=0.5")

    def size(self) -> Size:
        nnz = self.length * min(self.length, self.block) + self.noise_nnz
        return Size(self.length, self.length, nnz)


@dataclass
class File(Source):
    """A file of a kind that `datasets.read` reads."""

    path: str = _key(MISSING, "The file.", "path=my.mtx")

    def size(self) -> Size:
        return Size(*datasets.read_size(self.path))

    def load(self) -> scipy.sparse.csr_array:
        return datasets.read(self.path)

    def loader(self) -> Callable[..., scipy.sparse.csr_array]:
        return datasets.read

    def definition(self) -> dict[str, Any]:
        """The path, and the digest of the content."""
        return super().definition() | {"digest": datasets.file_digest(self.path)}


SOURCES: dict[str, type[Source]] = {
    "uniform": Uniform,
    "rmat": Rmat,
    "hashed_rmat": HashedRmat,
    "power_law": PowerLaw,
    "banded": Banded,
    "block_diagonal": BlockDiagonal,
    "fem": Fem,
    "star_stencil": StarStencil,
    "small_graphs": SmallGraphs,
    "nearest_neighbors": NearestNeighbors,
    "popular_columns": PopularColumns,
    "one_long_column": OneLongColumn,
    "causal": Causal,
    "packed_causal": PackedCausal,
    "sliding_window": SlidingWindow,
    "dilated_window": DilatedWindow,
    "random_blocks": RandomBlocks,
    "blocks_and_noise": BlocksAndNoise,
    "file": File,
}


def register() -> None:
    """Register the types of the sources with Hydra; call before composing."""
    for name, source in SOURCES.items():
        ConfigStore.instance().store(group="source", name=name, node=source)


def register_matrix(name: str, source: str, **values: Any) -> None:
    """Make `matrix=name` an option without a YAML of its own."""
    defaults = [{"/source@_here_": source}, "_self_"]
    ConfigStore.instance().store(group="matrix", name=name, node={"defaults": defaults, **values})
