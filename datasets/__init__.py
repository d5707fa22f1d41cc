"""Sparse matrices to sample with: generators, readers and a cache. numpy and scipy only.

Every generator and reader returns a scipy.sparse.csr_array; a generator's result is fixed by its
arguments, `seed` included.
"""

from datasets.cache import cached
from datasets.files import SUFFIXES, read, read_size
from datasets.open_file import FileError, file_digest
from datasets.skewed import power_law, rmat
from datasets.structured import banded, block_diagonal, fem
from datasets.uniform import nnz_of, uniform

__all__ = [
    "SUFFIXES",
    "FileError",
    "banded",
    "block_diagonal",
    "cached",
    "fem",
    "file_digest",
    "nnz_of",
    "power_law",
    "read",
    "read_size",
    "rmat",
    "uniform",
]
