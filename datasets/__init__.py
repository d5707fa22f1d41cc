"""Sparse matrices to sample with: generators, readers and a cache. numpy and scipy only,
and torch where a .pt file is read and where a hash makes a matrix.

Every generator and reader returns a scipy.sparse.csr_array; a generator's result is fixed by its
arguments, `seed` included.
"""

from datasets.cache import cached
from datasets.files import SUFFIXES, file_digest, read, read_size
from datasets.hashed import hashed_rmat, hashed_rmat_indices
from datasets.masks import (
    blocks_and_noise,
    causal,
    dilated_window,
    packed_causal,
    random_blocks,
    sliding_window,
)
from datasets.open_file import FileError
from datasets.skewed import (
    nearest_neighbors,
    one_long_column,
    popular_columns,
    power_law,
    rmat,
)
from datasets.structured import banded, block_diagonal, fem, small_graphs, star_stencil
from datasets.uniform import nnz_of, uniform

__all__ = [
    "SUFFIXES",
    "FileError",
    "banded",
    "block_diagonal",
    "blocks_and_noise",
    "cached",
    "causal",
    "dilated_window",
    "fem",
    "file_digest",
    "hashed_rmat",
    "hashed_rmat_indices",
    "nearest_neighbors",
    "nnz_of",
    "one_long_column",
    "packed_causal",
    "popular_columns",
    "power_law",
    "random_blocks",
    "read",
    "read_size",
    "rmat",
    "sliding_window",
    "small_graphs",
    "star_stencil",
    "uniform",
]
