"""A graph attention network: the score of an edge is a sum of two numbers, one of each end.

The layer is PyTorch Geometric's GATConv (Velickovic et al., "Graph attention networks", ICLR 2018,
equations 3 and 4) by `softmax` and `spmm`: of an edge only its score is stored, no row of features.
`python -m examples.gat` trains two layers on the graph of `graph_transformer.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.graph_transformer import two_communities
from sddmm import SparsePattern, softmax, spmm


class GATLayer(nn.Module):
    """(nodes, in_features) -> (nodes, heads * out_features)."""

    def __init__(self, in_features: int, out_features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(in_features, heads * out_features, bias=False)
        self.source = nn.Parameter(torch.empty(heads, out_features))
        self.target = nn.Parameter(torch.empty(heads, out_features))
        self.bias = nn.Parameter(torch.zeros(heads * out_features))
        nn.init.xavier_uniform_(self.source)
        nn.init.xavier_uniform_(self.target)

    def forward(self, x: Tensor, incoming: SparsePattern) -> Tensor:
        """incoming: the graph with targets as rows, `SparsePattern.from_edge_index(...).T`."""
        features = self.project(x).unflatten(1, (self.heads, -1)).transpose(0, 1)
        of_source = (features * self.source[:, None]).sum(-1)  # (heads, nodes)
        of_target = (features * self.target[:, None]).sum(-1)
        scores = of_source[:, incoming.col_ids] + of_target[:, incoming.row_ids]
        weights = softmax(incoming, nn.functional.leaky_relu(scores, 0.2))  # (heads, edges)
        out: Tensor = spmm(incoming, features, values=weights)
        return out.transpose(0, 1).flatten(1) + self.bias


def main(nodes: int = 400, steps: int = 25) -> float:
    """Train on every tenth label; print and return the accuracy on the others."""
    torch.manual_seed(0)
    edge_index, half = two_communities(nodes, degree=8)
    incoming = SparsePattern.from_edge_index(edge_index, nodes).T
    x = torch.randn(nodes, 16) + 0.5 * half[:, None]
    first, second = GATLayer(16, 8, heads=4), GATLayer(32, 2, heads=1)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    labelled = torch.arange(nodes) % 20 < 2
    for _ in range(steps):
        logits = second(nn.functional.elu(first(x, incoming)), incoming)
        loss = nn.functional.cross_entropy(logits[labelled], half[labelled])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = float((logits.argmax(1) == half)[~labelled].float().mean())
    print(f"{nodes} nodes, {edge_index.shape[1]} edges: accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
