"""The examples learn what they say, and their layers are those of PyTorch Geometric and torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from examples import gat, graph_transformer, longformer, recommender
from sddmm import SparsePattern

NODES, FEATURES, OUT, HEADS = 30, 6, 5, 3


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def graph() -> tuple[torch.Tensor, SparsePattern]:
    """Edges in no order, some twice; node 0 has none that come in."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES, (2, 150), generator=generator)
    edge_index[1] = edge_index[1].clamp(min=1)
    return edge_index, SparsePattern.from_edge_index(edge_index, NODES).T


@pytest.mark.slow
def test_the_transformer_layer_is_pytorch_geometrics() -> None:
    nn = pytest.importorskip("torch_geometric.nn", reason="of the extra dev")
    edge_index, incoming = graph()
    theirs = nn.TransformerConv(FEATURES, OUT, HEADS, root_weight=False)
    mine = graph_transformer.TransformerLayer(FEATURES, OUT, HEADS)
    for ours, other in (
        (mine.query, theirs.lin_query),
        (mine.key, theirs.lin_key),
        (mine.value, theirs.lin_value),
    ):
        ours.load_state_dict(other.state_dict())
    x = torch.randn(NODES, FEATURES)
    torch.testing.assert_close(mine(x, incoming), theirs(x, edge_index))


def test_the_gat_layer_is_pytorch_geometrics() -> None:
    nn = pytest.importorskip("torch_geometric.nn", reason="of the extra dev")
    edge_index, incoming = graph()
    theirs = nn.GATConv(FEATURES, OUT, HEADS, add_self_loops=False)
    mine = gat.GATLayer(FEATURES, OUT, HEADS)
    with torch.no_grad():
        mine.project.weight.copy_(theirs.lin.weight)
        mine.source.copy_(theirs.att_src[0])
        mine.target.copy_(theirs.att_dst[0])
    x = torch.randn(NODES, FEATURES)
    torch.testing.assert_close(mine(x, incoming), theirs(x, edge_index))


def test_the_window_layer_is_torchs_attention_with_a_mask() -> None:
    pattern = longformer.window_and_globals(20, reach=3, global_tokens=2)
    distance = (torch.arange(20)[:, None] - torch.arange(20)).abs()
    mask = distance <= 3
    mask[:2] = mask[:, :2] = True
    assert pattern == SparsePattern.from_torch(mask).to_csr()
    layer, x = longformer.LocalSelfAttention(pattern, 8, heads=2), torch.randn(3, 20, 8)
    q, k, v = (y.unflatten(2, (2, 4)).transpose(1, 2) for y in layer.project(x).chunk(3, dim=-1))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(layer(x), layer.out(out.transpose(1, 2).flatten(2)))


def test_the_recommenders_loss_is_that_of_the_dense_scores() -> None:
    torch.manual_seed(1)
    model, observed = recommender.Recommender(7, 9, 4), torch.tensor([[0, 3, 3], [8, 1, 1]])
    torch.manual_seed(2)
    loss = model.loss(observed, negatives=2)
    torch.manual_seed(2)
    sampled = torch.randint(9, (6,))
    scores = model.users @ model.items.mT
    positive = scores[observed[0], observed[1]]
    negative = scores[observed[0].repeat(2), sampled]
    expected = -torch.cat([positive, -negative]).sigmoid().log().mean()
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("example", "least"),
    [(graph_transformer, 0.8), (gat, 0.8), (longformer, 0.9), (recommender, 0.8)],
)
def test_an_example_learns(example: Any, least: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main() > least
    assert capsys.readouterr().out.count("\n") == 1
