"""A graph transformer: every node attends to the nodes that have an edge to it.

The layer is PyTorch Geometric's TransformerConv (Shi et al., "Masked label prediction", IJCAI 2021,
equation 3) without its root weight, by one call of `sparse_attention`: no row of features is stored
for an edge. `python -m examples.graph_transformer` trains two layers to tell the two halves of a
graph apart from few labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sddmm import SparsePattern, sparse_attention


class TransformerLayer(nn.Module):
    """(nodes, in_features) -> (nodes, heads * out_features)."""

    def __init__(self, in_features: int, out_features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(in_features, heads * out_features)
        self.key = nn.Linear(in_features, heads * out_features)
        self.value = nn.Linear(in_features, heads * out_features)

    def forward(self, x: Tensor, incoming: SparsePattern) -> Tensor:
        """incoming: the graph with targets as rows, `SparsePattern.from_edge_index(...).T`."""
        q, k, v = (self._heads_first(project(x)) for project in (self.query, self.key, self.value))
        out: Tensor = sparse_attention(incoming, q, k, v)
        return out.transpose(0, 1).flatten(1)

    def _heads_first(self, x: Tensor) -> Tensor:
        """(nodes, heads * d) seen as (heads, nodes, d), which is not copied."""
        return x.unflatten(1, (self.heads, -1)).transpose(0, 1)


def two_communities(nodes: int, degree: int) -> tuple[Tensor, Tensor]:
    """edge_index (2, edges) of a graph of two halves, most of whose edges stay in one, and the half
    of each node. Every node has an edge to itself."""
    half = torch.arange(nodes) % 2
    source = torch.arange(nodes).repeat_interleave(degree)
    step = 2 * torch.randint(nodes // 2, source.shape)
    crosses = torch.rand(source.shape) < 0.15
    target = (source + step + crosses.long()) % nodes
    loops = torch.arange(nodes)
    return torch.stack([torch.cat([source, loops]), torch.cat([target, loops])]), half


def main(nodes: int = 400, steps: int = 25) -> float:
    """Train on every tenth label; print and return the accuracy on the others."""
    torch.manual_seed(0)
    edge_index, half = two_communities(nodes, degree=8)
    incoming = SparsePattern.from_edge_index(edge_index, nodes).T
    x = torch.randn(nodes, 16) + 0.5 * half[:, None]
    first, second = TransformerLayer(16, 8, heads=4), TransformerLayer(32, 2, heads=1)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    labelled = torch.arange(nodes) % 20 < 2
    for _ in range(steps):
        logits = second(first(x, incoming).relu(), incoming)
        loss = nn.functional.cross_entropy(logits[labelled], half[labelled])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = float((logits.argmax(1) == half)[~labelled].float().mean())
    print(f"{nodes} nodes, {edge_index.shape[1]} edges: accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
