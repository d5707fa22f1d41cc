"""Matrices and graphs are read as the collections lay them out, and hostile files are refused."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import sys
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import datasets
from datasets import FileError
from tests.datasets.archives import npz
from tests.datasets.refusals import assert_refused_in_one_line

MATRIX = b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 5\n2 2 6\n"
# Two graphs: 0 -> 1 -> 2 of three nodes, and a loop at one of two nodes.
EDGES, NODES_OF_EACH, EDGES_OF_EACH = [[0, 1, 1], [1, 2, 1]], [3, 2], [2, 1]
ADJACENCY = np.zeros((5, 5))
ADJACENCY[[0, 1, 4], [1, 2, 4]] = 1

GEOMETRIC = "torch_geometric.data.data"


class Data:
    """Stands for PyTorch Geometric's class of this name, of which a file holds the name alone."""


class GlobalStorage:
    """As `Data`: the store of an older file's data."""


class HeteroData:
    """As `Data`."""


for stub, module in ((Data, GEOMETRIC), (GlobalStorage, "torch_geometric.data.storage"),
                     (HeteroData, "torch_geometric.data.hetero_data")):  # fmt: skip
    stub.__module__ = module


def tar(*members: tuple[str, bytes], **changed: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in changed.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return buffer.getvalue()


def tar_header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """An archive that ends after a header with this claim, and some bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4096)


def negative_size() -> bytes:
    header = bytearray(tarfile.TarInfo("X/a").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 8 + (2**32 - 1024).to_bytes(4, "big")  # -1024 in base 256
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return gzip.compress(bytes(header) * 4)


def ogb_npz(**changed: Any) -> bytes:
    members = {
        "edge_index": np.array(EDGES), "num_nodes_list": np.array(NODES_OF_EACH),
        "num_edges_list": np.array(EDGES_OF_EACH), "node_feat": np.ones((5, 4)),
    }  # fmt: skip
    return npz(**{k: v for k, v in {**members, **changed}.items() if v is not None})


def amazon_npz(**changed: Any) -> bytes:
    members = {
        "adj_data": np.ones(3), "adj_indices": np.array([1, 2, 4]), "labels": np.arange(5),
        "adj_indptr": np.array([0, 1, 2, 2, 2, 3]), "adj_shape": np.array([5, 5]),
    }  # fmt: skip
    return npz(**{**members, **changed})


def pt(thing: Any) -> bytes:
    """The file of torch.save, which looks the classes up in modules that only exist meanwhile."""
    buffer, modules = io.BytesIO(), {"torch_geometric": ModuleType("torch_geometric")}
    for stub in (Data, GlobalStorage, HeteroData):
        modules[stub.__module__] = ModuleType(stub.__module__)
        setattr(modules[stub.__module__], stub.__name__, stub)
    with mock.patch.dict(sys.modules, modules):
        torch.save(thing, buffer)
    return buffer.getvalue()


def processed(slices: Any = "right", **changed: Any) -> bytes:
    """As InMemoryDataset saves a list of graphs; what is None is left out."""
    data = {"edge_index": torch.tensor(EDGES), "x": torch.ones(5, 2), **changed}
    if slices == "right":
        slices = {"edge_index": torch.tensor([0, 2, 3]), "x": torch.tensor([0, 3, 5])}
    return pt(({k: v for k, v in data.items() if v is not None}, slices, Data))


def older() -> bytes:
    """One graph as a Data object around a store."""
    data, store = Data(), GlobalStorage()
    edges = torch.tensor([[0, 1, 4], [1, 2, 4]])
    vars(store).update(_mapping={"edge_index": edges, "x": torch.ones(5, 1)}, _parent=None)
    vars(data).update(_store=store)
    return pt((data, None))


def rezipped(content: bytes, change: Callable[[bytes], bytes], **options: Any) -> bytes:
    """The archive with another pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            is_pickle = info.filename.endswith("data.pkl")
            new.writestr(info.filename, change(data) if is_pickle else data, **options)
    return buffer.getvalue()


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def tensor_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> Calls:
    """A tensor that claims this shape over the 48 bytes of six edges."""
    storage = torch.tensor(EDGES)._typed_storage()
    rebuild = torch._utils._rebuild_tensor_v2  # what torch.save names for every tensor
    return Calls(rebuild, storage, 0, shape, strides, False, OrderedDict())


def ogb_folder(
    folder: Path, edges: bytes, nodes: bytes = b"3\n2\n", counts: bytes = b"2\n1\n"
) -> Path:
    for name, text in (("edge", edges), ("num-node-list", nodes), ("num-edge-list", counts)):
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text))
    return folder / "edge.csv.gz"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("X.tar.gz", tar(("X/X.mtx", MATRIX), ("X/X_b.mtx", b"junk")), [[5, 0], [0, 6]]),
        ("other.tar.gz", tar(("./X/X_b.mtx", b"x" * 999), ("X/X.mtx", MATRIX)), [[5, 0], [0, 6]]),
        ("data.npz", ogb_npz(), ADJACENCY),
        ("amazon.npz", amazon_npz(), ADJACENCY),
        ("data.pt", processed(), ADJACENCY),
        ("count.pt", processed(x=None, _num_nodes=[3, 2]), ADJACENCY),
        (
            "one.pt",
            processed(slices=None, edge_index=torch.tensor([[0, 1, 4], [1, 2, 4]])),
            ADJACENCY,
        ),
        ("older.pt", older(), ADJACENCY),
    ],
)
def test_a_file_of_a_collection_is_read_as_it_was_downloaded(
    name: str, content: bytes, expected: Any, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    matrix = datasets.read(path)
    np.testing.assert_array_equal(matrix.toarray(), expected)
    assert datasets.read_size(path) == (*matrix.shape, matrix.nnz)


def test_the_graphs_of_ogb_are_read_with_the_lists_beside_them(tmp_path: Path) -> None:
    path = ogb_folder(tmp_path, b"0,1\r\n1,2\n1,1")
    np.testing.assert_array_equal(datasets.read(path).toarray(), ADJACENCY)
    assert datasets.read_size(path) == (5, 5, 3)
    digest = datasets.file_digest(path)
    ogb_folder(tmp_path, b"0,1\r\n1,2\n1,1", nodes=b"4\n2\n")
    assert datasets.read(path).shape == (6, 6)
    assert datasets.file_digest(path) != digest  # another matrix: the list is another
    (tmp_path / "num-node-list.csv.gz").unlink()
    for reads in (datasets.read, datasets.read_size, datasets.file_digest):
        with pytest.raises(FileError, match=r"num-node-list\.csv\.gz: no such file"):
            reads(path)


@pytest.mark.parametrize(
    ("edges", "nodes", "counts", "words"),
    [
        (b"0,1\n1,2\n1,2\n", b"3\n2\n", b"2\n1\n", r"edge 2 is \[1, 2\], nodes in 0\.\.1 expected"),
        (b"0,1\n1;2\n1,1\n", b"3\n2\n", b"2\n1\n", "line 2: 'source,target' expected, got '1;2'"),
        (b"0,1\n,12\n1,1\n", b"3\n2\n", b"2\n1\n", "line 2: 'source,target' expected, got ',12'"),
        (b"0,1\n\n1,1\n", b"3\n2\n", b"2\n1\n", "line 2: 'source,target' expected, got ''"),
        (b"0,1\n1,-2\n1,1\n", b"3\n2\n", b"2\n1\n", "line 2: .*got '1,-2'"),
        (b"0,1\n1,99999999999999999999\n1,1", b"3\n2", b"2\n1", "line 2: .*got '1,9999999"),
        (b"0,1\n1,2\n", b"3\n2\n", b"2\n1\n", "truncated file: 2 of the 3 edges"),
        (b"0,1\n1,2\n1,1\n1,1\n", b"3\n2\n", b"2\n1\n", "more edges than the 3 of num-edge-list"),
        (b"0,1\n", b"3\n2\n", b"2\n", "num-node-list.csv.gz has 2 graphs and num-edge-list.* 1"),
        (b"0,1\n", b"999999999999\n", b"1\n", "999999999999 is too many for one graph"),
        (b"0,1\n", b"2\n", b"60000000000\n", "takes 24.* bytes of memory to read, the limit is"),
        (b"9" * 3_000_000, b"2\n", b"1\n", "line 1: a line is longer than"),
    ],
)
def test_a_wrong_folder_of_ogb_is_refused_in_one_line(
    edges: bytes, nodes: bytes, counts: bytes, words: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError, match=words) as caught:
        datasets.read(ogb_folder(tmp_path, edges, nodes, counts))
    assert str(caught.value).isprintable()


REFUSED: list[tuple[str, bytes, str]] = [
    # SuiteSparse's archives.
    ("m.tar.gz", b"junk", "[Nn]ot a gzip"),
    ("m.tar.gz", gzip.compress(b"junk" * 999), "not a tar archive"),
    ("m.tar.gz", tar(("X/X.mtx", MATRIX))[:-40], "ended before the end-of-stream|CRC|not a tar"),
    ("m.tar.gz", tar(("a/b.mtx", MATRIX)), "no member NAME/NAME.mtx.*begins with 'a/b.mtx'"),
    ("m.tar.gz", tar(), "no member NAME/NAME.mtx, .*begins with no member"),
    ("m.tar.gz", tar(("X/X.mtx", b""), type=tarfile.SYMTYPE, linkname="/etc/passwd"),
     "'X/X.mtx' is no ordinary file"),
    ("m.tar.gz", tar(("X/X.mtx", b""), type=tarfile.LNKTYPE, linkname="X"), "no ordinary file"),
    ("m.tar.gz", tar(("X/X.mtx", b""), type=tarfile.FIFOTYPE), "no ordinary file"),
    ("m.tar.gz", tar_header("X/X.mtx", 10**15), "line 1: not a Matrix Market file"),
    ("m.tar.gz", tar_header("X/a", 10**15), "more than 268435456 bytes before the matrix"),
    ("m.tar.gz", tar_header("x", 2**31, tarfile.XHDTYPE), "a header of 2147483648 bytes"),
    ("m.tar.gz", tar_header("x", 2**31, tarfile.GNUTYPE_LONGNAME), "a header of 2147483648 bytes"),
    ("m.tar.gz", negative_size(), "not a tar archive"),
    ("m.tar.gz", tar(*((f"X/{i}", b"") for i in range(2000))), "no member NAME/NAME.mtx"),
    # ogb's and other graphs in .npz.
    ("m.npz", ogb_npz(edge_index=np.ones((3, 3))), r"edge_index must be \(2, edges\) integers"),
    ("m.npz", ogb_npz(edge_index=np.array([[0, 1, 2], [1, 2, 1]])), r"edge 2 is \[2, 1\], nodes"),
    ("m.npz", ogb_npz(edge_index=np.array([[0, -1, 1], [1, 2, 1]])), r"edge 1 is \[-1, 2\]"),
    ("m.npz", ogb_npz(num_edges_list=np.array([2, 2])), "counts 4 edges, edge_index has 3"),
    ("m.npz", ogb_npz(num_edges_list=np.array([3])), "lists of 2 and 1 graphs"),
    ("m.npz", ogb_npz(num_nodes_list=np.array([3, -2])), r"holds -2\.\.3, which counts nothing"),
    ("m.npz", ogb_npz(num_nodes_list=np.array([3, 10**11])), "which counts nothing"),
    ("m.npz", ogb_npz(num_nodes_list=None), "it has no member 'num_nodes_list'"),
    ("m.npz", amazon_npz(adj_indices=np.array([1, 2, 5])), r"indices holds 1\.\.5"),
    ("m.npz", amazon_npz(adj_shape=np.array([5])), "shape must be two integers"),
    # PyTorch Geometric's processed files.
    ("m.pt", b"junk", "no archive of torch.save"),
    ("m.pt", pt((Calls(os.system, "exit 1"),)), "it names 'posix.system', which is never loaded"),
    ("m.pt", pt((Calls(bytearray, 10**12),)), "it names '.*bytearray', which is never loaded"),
    ("m.pt", rezipped(processed(), lambda p: b"\x80\x02\x8c\x02os\x8c\x06system\x93."),
     "its pickle has the operation STACK_GLOBAL"),
    ("m.pt", rezipped(processed(), lambda p: p[:40]), "no graph of PyTorch Geometric"),
    ("m.pt", rezipped(processed(), lambda p: p, compress_type=zipfile.ZIP_DEFLATED),
     "its members are compressed"),
    ("m.pt", rezipped(processed(), lambda p: p + b"\0" * 5_000_000), "data.pkl of up to 4194304"),
    ("m.pt", pt(({"a": 1}, None, HeteroData)), "several kinds of nodes are not read"),
    ("m.pt", pt("text"), "it is no dict of tensors"),
    ("m.pt", pt({"edge_index": [1, 2]}), "edge_index is no tensor"),
    ("m.pt", processed(edge_index=torch.ones(2, 3)), r"must be \(2, edges\) integers"),
    ("m.pt", processed(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]])), r"edge 2 is \[2, 0\]"),
    ("m.pt", processed(edge_index=tensor_of((2, 10**12), (10**12, 1))), "torch cannot load it"),
    ("m.pt", processed(edge_index=tensor_of((2, 10**12), (0, 0))), "edge_index repeats 48 bytes"),
    ("m.pt", processed(slices={"edge_index": tensor_of((10**12,), (0,))}), "repeats 48 bytes"),
    ("m.pt", processed(x=None), "no slices of x, feat, pos, node_type to count nodes by"),
    ("m.pt", processed(slices=None, x=None), "none of num_nodes, x, feat"),
    ("m.pt", processed(slices={"edge_index": torch.tensor([0, 2, 9])}), "do not rise from 0 to 3"),
    ("m.pt", processed(slices={"edge_index": torch.tensor([0, 5, 3])}), "do not rise from 0 to 3"),
    ("m.pt", processed(slices=None, x=None, num_nodes=2), r"nodes in 0\.\.1 expected"),
    ("m.pt", processed(slices=None, x=None, num_nodes=2**50), "bytes of memory to read, the limit"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "words"),
    REFUSED,
    ids=[f"{i}-{row[2][:40]}" for i, row in enumerate(REFUSED)],
)
def test_a_hostile_file_of_a_collection_is_refused_in_one_line(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert_refused_in_one_line(path, f"({words})")
    with contextlib.suppress(FileError):  # and nothing else, whatever the header promises
        datasets.read_size(path)
