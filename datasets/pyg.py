"""Reads graphs out of the processed .pt files of PyTorch Geometric's data sets.

Such a file is torch.save of a tuple: the data (a dict, or in older files a Data object), and for
several graphs the slices that say where each begins. Nodes are counted from 0 in every graph. The
matrix has a row for each source and a column for each target, all graphs on its diagonal.

A .pt file is a pickle, which may run code when it is loaded. So torch loads it with weights_only,
which runs none, and before that the archive and every name in the pickle are checked: only tensors
and PyTorch Geometric's own containers may occur, which are filled without its code. Tensors are
mapped, not read, so that features take no memory.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse

from datasets.limits import Size, refuse_too_large
from datasets.npy_archive import ZIP_ERRORS, SmallReads, reason_of
from datasets.ogb import adjacency
from datasets.open_file import file_error, quoted

_MAX_PICKLE = 4 * 2**20

_CONTAINERS = (
    "torch_geometric.data.data.Data",
    "torch_geometric.data.data.DataEdgeAttr",
    "torch_geometric.data.data.DataTensorAttr",
    "torch_geometric.data.storage.BaseStorage",
    "torch_geometric.data.storage.GlobalStorage",
)
_TENSORS = re.compile(
    r"torch\._utils\._rebuild_tensor_v2|collections\.OrderedDict|torch\.[A-Z][A-Za-z0-9]*Storage"
)
# Opcodes that look names up elsewhere than in the pickle's text, which torch does not write.
_STRANGE = {"STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4"}

# Data of nodes, whose lengths are the numbers of nodes where `num_nodes` is not given.
_NODE_DATA = ("x", "feat", "pos", "node_type")


class _Graphs:
    """The graphs of one file. edge_index: (2, edges) as an array that maps the file; nodes, edges:
    their numbers in each graph."""

    def __init__(self, edge_index: np.ndarray, nodes: np.ndarray, edges: np.ndarray) -> None:
        self.edge_index, self.nodes, self.edges = edge_index, nodes, edges

    @property
    def size(self) -> Size:
        count = int(self.nodes.sum())
        return Size(count, count, self.edge_index.shape[1])


class _LayoutError(Exception):
    """The file holds no graphs in the layout of PyTorch Geometric; the text says why."""


def size(path: Path, file: BinaryIO) -> Size:
    """Nodes, nodes and edges."""
    return _load(path, file).size


def read(path: Path, file: BinaryIO, max_bytes: int) -> scipy.sparse.coo_array:
    """The adjacency matrix of all graphs, with ones as values, in float32; duplicates kept."""
    graphs = _load(path, file)
    refuse_too_large(path, graphs.size, max_bytes)
    try:
        return adjacency(np.array(graphs.edge_index), graphs.nodes, graphs.edges)
    except ValueError as error:
        raise file_error(path, str(error)) from None


def _load(path: Path, file: BinaryIO) -> _Graphs:
    try:
        _check_archive(file)
        return _graphs(_unpickled(path))
    except _LayoutError as error:
        raise file_error(path, f"no graph of PyTorch Geometric: {error}") from None


def _check_archive(file: BinaryIO) -> None:
    """_LayoutError unless this is an archive of torch.save that holds tensors and containers."""
    try:
        with zipfile.ZipFile(SmallReads(file)) as archive:
            infos = archive.infolist()
            if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
                raise _LayoutError("its members are compressed, which torch never does")
            pickles = [info for info in infos if info.filename.endswith("/data.pkl")]
            if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE:
                raise _LayoutError(f"it needs one member data.pkl of up to {_MAX_PICKLE} bytes")
            _check_names(archive.read(pickles[0]))
    except ZIP_ERRORS as error:
        raise _LayoutError(f"no archive of torch.save (1.6 or later): {reason_of(error)}") from None


def _check_names(pickled: bytes) -> None:
    """_LayoutError if the pickle names anything but tensors and known containers."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in _STRANGE:
            raise _LayoutError(f"its pickle has the operation {opcode.name}")
        if opcode.name == "GLOBAL":
            name = str(argument).replace(" ", ".")
            if name == "torch_geometric.data.hetero_data.HeteroData":
                raise _LayoutError("graphs with several kinds of nodes are not read")
            if name not in _CONTAINERS and not _TENSORS.fullmatch(name):
                raise _LayoutError(f"it names {quoted(name)}, which is never loaded")


def _unpickled(path: Path) -> Any:
    """The object in a file whose names were checked."""
    import torch

    containers = []
    for name in _CONTAINERS:
        module, _, last = name.rpartition(".")
        names = {"__module__": module, "__qualname__": last}
        containers.append(type(last, (), names))
    try:
        with torch.serialization.safe_globals(containers):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # of many kinds, for a pickle that torch did not write
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _LayoutError(f"torch cannot load it: {quoted(lines[0])}") from None


def _graphs(loaded: Any) -> _Graphs:
    data, slices = loaded, None
    if isinstance(loaded, tuple) and len(loaded) >= 2:
        data, slices = loaded[:2]
    if not isinstance(data, dict):  # an older file: a Data object around a mapping
        data = getattr(getattr(data, "_store", data), "_mapping", None)
    if not isinstance(data, dict) or not (slices is None or isinstance(slices, dict)):
        raise _LayoutError("it is no dict of tensors")
    edge_index = _array(data.get("edge_index"), "edge_index")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
        raise _LayoutError(f"edge_index must be (2, edges) integers, got {edge_index.shape}")
    if not slices:
        edges = np.array([edge_index.shape[1]])
        return _Graphs(edge_index, np.array([_nodes(data)]), edges)
    edges = _lengths(slices, "edge_index", edge_index.shape[1])
    nodes = _nodes_of_each(data, slices)
    if nodes.size != edges.size:
        raise _LayoutError(f"it counts nodes of {nodes.size} graphs and edges of {edges.size}")
    return _Graphs(edge_index, nodes, edges)


def _nodes(data: dict[str, Any]) -> int:
    """The number of nodes of the one graph."""
    count = data.get("num_nodes")
    if isinstance(count, int) and 0 <= count < 2**63:
        return count
    for name in _NODE_DATA:
        if getattr(data.get(name), "ndim", 0):
            return int(data[name].shape[0])
    raise _LayoutError(f"it has none of num_nodes, {', '.join(_NODE_DATA)} to count nodes by")


def _nodes_of_each(data: dict[str, Any], slices: dict[str, Any]) -> np.ndarray:
    counts = data.get("_num_nodes")
    if isinstance(counts, list) and all(isinstance(n, int) and 0 <= n < 2**36 for n in counts):
        return np.array(counts, np.int64)
    for name in _NODE_DATA:
        if name in slices and getattr(data.get(name), "ndim", 0):
            return _lengths(slices, name, int(data[name].shape[0]))
    raise _LayoutError(f"it has no slices of {', '.join(_NODE_DATA)} to count nodes by")


def _lengths(slices: dict[str, Any], name: str, total: int) -> np.ndarray:
    """The length of each graph's part of a tensor."""
    starts = _array(slices.get(name), f"the slices of {name}")
    rises = starts.ndim == 1 and starts.size > 0 and starts.dtype.kind in "iu"
    if not rises or starts[0] != 0 or starts[-1] != total or (np.diff(starts) < 0).any():
        raise _LayoutError(f"the slices of {name} do not rise from 0 to {total}")
    return np.diff(starts.astype(np.int64))


def _array(tensor: Any, name: str) -> np.ndarray:
    """The tensor's memory, which is the file's: no more than the file has."""
    try:
        array: np.ndarray = tensor.numpy()
        held = tensor.untyped_storage().nbytes()
    except (AttributeError, TypeError, RuntimeError):
        raise _LayoutError(f"{name} is no tensor") from None
    if array.nbytes > held:
        raise _LayoutError(f"{name} repeats {held} bytes to {array.nbytes}")
    return array
