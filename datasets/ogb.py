"""Reads graphs as the Open Graph Benchmark stores them raw (Hu et al., NeurIPS 2020).

A folder `raw` holds edge.csv.gz, a line "source,target" for each edge, num-node-list.csv.gz and
num-edge-list.csv.gz, a line for each graph; or data.npz with the arrays edge_index, num_nodes_list
and num_edges_list. Nodes are counted from 0 in every graph. The matrix has a row for each source
and a column for each target, all graphs on its diagonal, and holds the edges that are stored: ogb's
inverse edges are not added. (Source of the layout: ogb/io/read_graph_raw.py of snap-stanford/ogb.)
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy.sparse

from datasets.limits import MAX_EXPANSION, Size, refuse_too_large
from datasets.npy_archive import ArchiveError, NpyArchive
from datasets.open_file import file_error, open_regular, quoted

NODES, EDGES = "num-node-list.csv.gz", "num-edge-list.csv.gz"

_BLOCK = 2**20
# Bytes of the shortest line, "0,0".
_LEAST_LINE = 4
# Bytes of the text of a list; ogb's longest has four million graphs.
_MAX_LIST_BYTES = 2**26
# More nodes or edges than any graph has; the sum of a list of such numbers is below 2^63.
_MAX_COUNT = 2**36
_MAX_INT64 = 2**63 - 1


def companions(path: Path) -> tuple[Path, ...]:
    """The files beside edge.csv.gz that the graph depends on."""
    return path.with_name(NODES), path.with_name(EDGES)


def size(path: Path, file: BinaryIO) -> Size:
    """Nodes, nodes and edges, which the lists beside the file promise."""
    nodes, edges = (_list(companion) for companion in companions(path))
    promised = _promised(path, nodes, edges)
    held = os.fstat(file.fileno()).st_size * MAX_EXPANSION
    return promised._replace(nnz=min(promised.nnz, held // _LEAST_LINE + 1))


def read(path: Path, file: BinaryIO, max_bytes: int) -> scipy.sparse.coo_array:
    """The adjacency matrix of all graphs, with ones as values, in float32; duplicates kept."""
    nodes, edges = (_list(companion) for companion in companions(path))
    promised = _promised(path, nodes, edges)
    refuse_too_large(path, promised, max_bytes)
    edge_index = np.empty((promised.nnz, 2), np.int64)
    done = 0
    for _, block in _integers(path, file, 2):
        if done + len(block) > promised.nnz:
            raise file_error(path, f"more edges than the {promised.nnz} of {EDGES}")
        edge_index[done : done + len(block)] = block
        done += len(block)
    if done < promised.nnz:
        raise file_error(path, f"truncated file: {done} of the {promised.nnz} edges of {EDGES}")
    try:
        return adjacency(edge_index.T, nodes, edges)
    except ValueError as error:
        raise file_error(path, str(error)) from None


def promised_by_archive(archive: NpyArchive) -> Size:
    """Nodes, nodes and edges of a data.npz."""
    dtype, shape = archive.header("edge_index")
    if dtype.kind not in "iu" or len(shape) != 2 or shape[0] != 2:
        raise ArchiveError(f"edge_index must be (2, edges) integers, got {dtype} of shape {shape}")
    nodes, edges = _lists_of_archive(archive)
    if int(edges.sum()) != shape[1]:
        raise ArchiveError(f"num_edges_list counts {edges.sum()} edges, edge_index has {shape[1]}")
    rows = int(nodes.sum())
    return Size(rows, rows, shape[1])


def read_archive(archive: NpyArchive) -> scipy.sparse.coo_array:
    """As `read`, of a data.npz whose size is known to be small enough."""
    nodes, edges = _lists_of_archive(archive)
    try:
        return adjacency(archive.read("edge_index").astype(np.int64, copy=False), nodes, edges)
    except ValueError as error:
        raise ArchiveError(str(error)) from None


def _lists_of_archive(archive: NpyArchive) -> tuple[np.ndarray, np.ndarray]:
    lists = []
    for name in ("num_nodes_list", "num_edges_list"):
        counts = archive.read(name, _MAX_LIST_BYTES)
        if counts.dtype.kind not in "iu" or counts.ndim != 1:
            raise ArchiveError(f"{name} must be integers, got {counts.dtype} of {counts.shape}")
        if counts.size and not 0 <= counts.min() <= counts.max() < _MAX_COUNT:
            raise ArchiveError(f"{name} holds {counts.min()}..{counts.max()}, which counts nothing")
        lists.append(counts.astype(np.int64))
    if lists[0].size != lists[1].size:
        raise ArchiveError(f"lists of {lists[0].size} and {lists[1].size} graphs")
    return lists[0], lists[1]


def adjacency(
    edge_index: np.ndarray, nodes: np.ndarray, edges: np.ndarray
) -> scipy.sparse.coo_array:
    """The graphs on the diagonal of one matrix, with ones as values, in float32.

    edge_index: (2, edges) of all graphs, each with nodes from 0 on. nodes, edges: their numbers in
    each graph. ValueError if an edge has a node that its graph does not have.
    """
    before = np.cumsum(nodes) - nodes
    bound = np.repeat(nodes, edges)
    wrong = ((edge_index < 0) | (edge_index >= bound)).any(0)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        pair = edge_index[:, at].tolist()
        raise ValueError(f"edge {at} is {pair}, nodes in 0..{bound[at] - 1} expected")
    count = int(nodes.sum())
    source, target = edge_index + np.repeat(before, edges)
    ones = np.ones(source.size, np.float32)
    return scipy.sparse.coo_array((ones, (source, target)), shape=(count, count))


def _promised(path: Path, nodes: np.ndarray, edges: np.ndarray) -> Size:
    if nodes.size != edges.size:
        words = f"{NODES} has {nodes.size} graphs and {EDGES} {edges.size}"
        raise file_error(path, words)
    rows = int(nodes.sum())
    return Size(rows, rows, int(edges.sum()))


def _list(path: Path) -> np.ndarray:
    """The numbers of a list, one in a line."""
    parts, taken = [], 0
    with open_regular(path) as file:
        for line, block in _integers(path, file, 1):
            taken += block.nbytes
            if taken > _MAX_LIST_BYTES:
                raise file_error(path, "too many graphs", line)
            if block.max() >= _MAX_COUNT:
                raise file_error(path, f"{block.max()} is too many for one graph")
            parts.append(block[:, 0])
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _integers(path: Path, file: BinaryIO, columns: int) -> Iterator[tuple[int, np.ndarray]]:
    """Blocks of lines, with the number of each block's last line; every line has so many integers
    >= 0 between commas."""
    stream, rest, lines = gzip.GzipFile(fileobj=file, mode="rb"), b"", 0
    try:
        while block := stream.read(_BLOCK):
            text = rest + block
            end = text.rfind(b"\n") + 1
            if end == 0:
                raise file_error(path, f"a line is longer than {len(text)} bytes", lines + 1)
            rest = text[end:]
            numbers = _parsed(path, text[:end], columns, lines)
            lines += len(numbers)
            yield lines, numbers
    except gzip.BadGzipFile as error:
        raise file_error(path, f"not a gzip file: {error}") from None
    if rest:
        yield lines + 1, _parsed(path, rest + b"\n", columns, lines)


def _parsed(path: Path, text: bytes, columns: int, lines: int) -> np.ndarray:
    text = text.replace(b"\r\n", b"\n")
    count, flat = text.count(b"\n"), b"," + text.replace(b"\n", b",")
    separators = text.translate(None, b"0123456789")
    if separators == (b"," * (columns - 1) + b"\n") * count and b",," not in flat:
        numbers = np.fromstring(flat[1:], np.int64, sep=",")
        if not count or numbers.max() < _MAX_INT64:  # which stands for larger ones too
            return numbers.reshape(count, columns)
    line = re.compile(b",".join([rb"[0-9]{1,18}"] * columns))
    for number, words in enumerate(text.split(b"\n")[:-1], lines + 1):
        if not line.fullmatch(words):
            expected = "'source,target'" if columns == 2 else "a number"
            raise file_error(path, f"{expected} expected, got {quoted(words)}", number)
    raise file_error(path, "cannot be read as numbers", lines + 1)
