"""Patterns between devices, in Modules and in graphs' data; when patterns are equal."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import sddmm
from sddmm import PatternModule, SparsePattern
from sddmm.testing import assert_close, random_pattern

CSR = random_pattern(9, 7, 30)
COO = random_pattern(9, 7, 30, layout="coo", shuffled=True)
BOTH = pytest.mark.parametrize("pattern", [CSR, COO], ids=["csr", "coo"])


@BOTH
def test_a_pattern_is_itself_where_it_is_and_a_copy_elsewhere(pattern: SparsePattern) -> None:
    assert pattern.to("cpu") is pattern.cpu() is pattern
    moved = pattern.to(torch.device("meta"), non_blocking=True)
    assert (moved.device.type, moved.shape, moved.nnz) == ("meta", pattern.shape, pattern.nnz)
    assert moved.is_csr == pattern.is_csr


@pytest.mark.parametrize("other", [torch.float32, torch.int32, torch.ones(1)])
def test_a_pattern_does_not_move_to_a_dtype(other: Any) -> None:
    with pytest.raises(TypeError, match=r"device must be a torch\.device.* keeps the dtype"):
        COO.to(other)


@BOTH
def test_the_transpose_keeps_the_order_of_the_nonzeros(pattern: SparsePattern) -> None:
    transpose = pattern.T
    assert transpose.shape == (7, 9)
    assert torch.equal(transpose.row_ids, pattern.col_indices)
    assert torch.equal(transpose.col_indices, pattern.row_ids)
    assert pattern.T is transpose  # so that what is prepared for it is kept
    assert pattern.to_coo() == transpose.T


def test_the_transpose_follows_a_change_in_place() -> None:
    pattern = COO.clone()
    before = pattern.T
    pattern.col_indices.copy_(pattern.col_indices.flip(0))
    assert torch.equal(pattern.T.row_ids, pattern.col_indices)
    assert pattern.T is not before


@BOTH
def test_patterns_are_equal_by_content(pattern: SparsePattern) -> None:
    same = pattern.clone()
    assert pattern == same
    assert hash(pattern) == hash(same)
    assert pattern.fingerprint == same.fingerprint
    assert len({pattern, same}) == 1
    assert {pattern: "plan"}[same] == "plan"
    others = [
        pattern.to_coo() if pattern.is_csr else pattern.to_csr(),
        random_pattern(9, 7, 30, seed=1, layout="csr" if pattern.is_csr else "coo"),
        random_pattern(9, 7, 29, layout="csr" if pattern.is_csr else "coo"),
        random_pattern(9, 7, 30, index_dtype=torch.int32),
        pattern.T,
    ]
    for other in others:
        assert pattern != other
        assert pattern.fingerprint != other.fingerprint
    assert len({pattern, *others}) == 6
    assert pattern != "a pattern"


def test_a_pattern_stays_the_key_of_its_dict_while_its_indices_change() -> None:
    pattern = COO.clone()
    kept = {pattern: 1}
    pattern.col_indices.copy_(pattern.col_indices.flip(0))
    assert kept[pattern] == 1
    assert COO not in kept


class Net(torch.nn.Module):
    def __init__(self, pattern: SparsePattern) -> None:
        super().__init__()
        self.graph = PatternModule(pattern)
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return sddmm.sddmm(self.graph.pattern, a * self.weight, b)


A, B = torch.randn(9, 3), torch.randn(3, 7)


@BOTH
def test_a_pattern_moves_with_its_module(pattern: SparsePattern) -> None:
    net = Net(pattern)
    assert net.graph.pattern is pattern
    net.double()
    assert net.graph.pattern is pattern  # a cast leaves indices, and what was prepared, alone
    net.to("meta")
    assert net.graph.pattern.device.type == "meta"
    assert {x.device.type for x in (*net.parameters(), *net.buffers())} == {"meta"}


@BOTH
@pytest.mark.parametrize("assign", [False, True])
def test_a_pattern_is_saved_and_loaded_with_its_module(
    pattern: SparsePattern, assign: bool
) -> None:
    file = io.BytesIO()
    torch.save(Net(pattern).state_dict(), file)
    file.seek(0)
    other = random_pattern(
        9, 7, 30, layout="csr" if pattern.is_csr else "coo", shuffled=not pattern.is_csr, seed=5
    )
    net = Net(other.clone())
    assert_close(net(A, B).detach(), other, A, B)
    net.load_state_dict(torch.load(file), assign=assign)
    assert net.graph.pattern == pattern
    assert_close(net(A, B).detach(), pattern, A, B)
    with pytest.raises(RuntimeError, match=r"size mismatch for graph\.col_indices"):
        Net(random_pattern(9, 7, 29, layout="coo")).load_state_dict(net.state_dict())


@BOTH
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copied_module_has_a_pattern_over_its_own_buffers(
    pattern: SparsePattern, copied: Callable[[Any], Any]
) -> None:
    net = copied(Net(pattern))
    assert net.graph.pattern == pattern
    assert net.graph.pattern.col_indices is net.graph.col_indices is not pattern.col_indices


@BOTH
def test_a_pattern_follows_buffers_that_are_replaced(pattern: SparsePattern) -> None:
    net, reversed_cols = Net(pattern), pattern.col_indices.flip(0)
    other = pattern.map_indices(lambda x: reversed_cols if x is pattern.col_indices else x)
    result = torch.func.functional_call(net, {"graph.col_indices": reversed_cols}, (A, B))
    assert_close(result.detach(), other, A, B)
    assert_close(net(A, B).detach(), pattern, A, B)
    # As torch.nn.parallel.replicate does for DataParallel.
    replica = net.graph._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    replica.col_indices = reversed_cols
    assert replica.pattern == other
    assert net.graph.pattern == pattern


def test_a_module_whose_buffers_are_no_indices_has_no_pattern() -> None:
    module = PatternModule(COO.clone()).type(torch.float16)
    with pytest.raises(TypeError, match=r"row_indices must be int32 or int64, got torch\.float16"):
        _ = module.pattern
    net = Net(COO.clone())
    net.graph.col_indices = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"col_indices must be a 1-D torch tensor .*NoneType"):
        _ = net.graph.pattern


def test_a_module_that_does_not_save_its_pattern() -> None:
    assert not PatternModule(COO, persistent=False).state_dict()
    with pytest.raises(TypeError, match="pattern must be a SparsePattern"):
        PatternModule(COO.col_indices)  # type: ignore[arg-type]


def test_a_compiled_module_samples_with_its_pattern() -> None:
    torch._dynamo.reset()
    net = Net(COO)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A, B), net(A, B))


class Data:
    """How PyTorch Geometric's Data applies a function to what it holds (recursive_apply)."""

    def __init__(self, **items: Any) -> None:
        self.items = items

    def apply(self, function: Callable[[Any], Any]) -> Data:
        def applied(item: Any) -> Any:
            try:
                return function(item)
            except Exception:
                return item

        self.items = {name: applied(item) for name, item in self.items.items()}
        return self

    def to(self, device: Any, non_blocking: bool = False) -> Data:
        return self.apply(lambda x: x.to(device=device, non_blocking=non_blocking))

    def cpu(self) -> Data:
        return self.apply(lambda x: x.cpu())


def test_a_pattern_moves_with_the_data_of_a_graph() -> None:
    data = Data(x=A, pattern=COO, name="graph").to("meta")
    assert data.items["pattern"].device == data.items["x"].device == torch.device("meta")
    assert Data(pattern=COO).cpu().items["pattern"] is COO
    assert Data(pattern=COO).apply(lambda x: x.clone()).items["pattern"] == COO


@pytest.mark.gpu
def test_a_pattern_moves_to_a_gpu_and_back() -> None:
    for pattern in (CSR, COO):
        on_gpu = pattern.cuda()
        assert on_gpu.device.type == "cuda"
        assert on_gpu.cuda() is on_gpu.to("cuda") is on_gpu
        assert on_gpu == pattern == on_gpu.cpu()
        assert on_gpu != random_pattern(9, 7, 30, seed=1)
        assert on_gpu.fingerprint == pattern.fingerprint
        net = Net(pattern).cuda()
        assert net.graph.pattern == on_gpu
        assert_close(net(A.cuda(), B.cuda()).detach(), on_gpu, A.cuda(), B.cuda())
        mask = torch.rand(9, 7, device="cuda") < 0.5
        assert SparsePattern.from_torch(mask) == SparsePattern.from_torch(mask.cpu())


@pytest.mark.gpu
def test_a_pattern_moves_with_pytorch_geometric_data() -> None:
    data = pytest.importorskip("torch_geometric.data")
    graph = data.Data(x=A, pattern=COO).to("cuda")
    assert graph.pattern.device == graph.x.device
    assert graph.pattern == COO
    assert graph.cpu().pattern.device.type == "cpu"
