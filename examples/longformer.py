"""Attention of a long sequence: a window around each token, and a few tokens that see everything.

The pattern is that of Longformer (Beltagy, Peters and Cohan, 2020, section 3.1); global tokens have
the projections of all others here. `python -m examples.longformer` trains one layer to copy to the
end of a sequence what its first token says, which a window alone cannot carry so far.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sddmm import PatternModule, SparsePattern, sparse_attention


def window_and_globals(length: int, reach: int, global_tokens: int) -> SparsePattern:
    """Token i sees tokens i - reach .. i + reach and the first `global_tokens`, which see all."""
    near = torch.arange(length)[:, None] + torch.arange(-reach, reach + 1)
    row = torch.arange(length)[:, None].expand_as(near)
    inside = (near >= global_tokens) & (near < length) & (row >= global_tokens)
    rows, cols = [row[inside]], [near[inside]]
    everything, first = torch.arange(length), torch.arange(global_tokens)
    rows += [first.repeat_interleave(length), everything[global_tokens:].repeat(global_tokens)]
    cols += [everything.repeat(global_tokens)]
    cols += [first.repeat_interleave(length - global_tokens)]
    shape = (length, length)
    return SparsePattern.from_coo(torch.cat(rows), torch.cat(cols), shape).to_csr()


class LocalSelfAttention(nn.Module):
    """(batch, length, features) -> the same, over one pattern for all sequences."""

    def __init__(self, pattern: SparsePattern, features: int, heads: int) -> None:
        super().__init__()
        self.pattern = PatternModule(pattern)  # moves with the module
        self.heads = heads
        self.project = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        # Heads of all sequences, (batch * heads, length, d).
        q, k, v = (
            each.unflatten(2, (self.heads, -1)).transpose(1, 2).flatten(0, 1)
            for each in self.project(x).chunk(3, dim=-1)
        )
        out: Tensor = sparse_attention(self.pattern.pattern, q, k, v)
        out = out.view(batch, self.heads, length, -1).transpose(1, 2).reshape(x.shape)
        result: Tensor = self.out(out)
        return result


def main(length: int = 128, steps: int = 30) -> float:
    """Train on random sequences; print and return the accuracy of the last token's copy."""
    torch.manual_seed(0)
    symbols, features = 4, 32
    layer = LocalSelfAttention(window_and_globals(length, reach=8, global_tokens=1), features, 4)
    embed, read = nn.Embedding(symbols, features), nn.Linear(features, symbols)
    place = nn.Parameter(torch.randn(length, features))
    parameters = [p for module in (layer, embed, read) for p in module.parameters()]
    optimizer = torch.optim.Adam([*parameters, place], lr=0.01)
    for _ in range(steps):
        tokens = torch.randint(symbols, (16, length))
        logits = read(layer(embed(tokens) + place)[:, -1])
        loss = nn.functional.cross_entropy(logits, tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = float((logits.argmax(1) == tokens[:, 0]).float().mean())
    print(f"length {length}, {layer.pattern.pattern.nnz} of {length**2} scores: {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
