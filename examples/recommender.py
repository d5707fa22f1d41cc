"""A recommender: vectors of users and items, trained on observed pairs against sampled ones.

The scores of all pairs, observed and sampled, are one call of `sddmm`, whose pattern holds the
pairs; its gradients are two products. The loss is logistic with uniform negatives (Mikolov et al.,
"Distributed representations of words and phrases", NIPS 2013, section 2.2, on users and items).
`python -m examples.recommender` learns pairs that hidden vectors of low rank have made.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sddmm import SparsePattern, sddmm


class Recommender(nn.Module):
    """The vectors of users and items."""

    def __init__(self, users: int, items: int, features: int) -> None:
        super().__init__()
        self.users = nn.Parameter(0.1 * torch.randn(users, features))
        self.items = nn.Parameter(0.1 * torch.randn(items, features))

    def loss(self, observed: Tensor, negatives: int) -> Tensor:
        """observed: (2, pairs) of users and items; negatives: items sampled for each pair."""
        users = torch.cat([observed[0], observed[0].repeat(negatives)])
        sampled = torch.randint(self.items.shape[0], (negatives * observed.shape[1],))
        shape = (self.users.shape[0], self.items.shape[0])
        pairs = SparsePattern.from_coo(users, torch.cat([observed[1], sampled]), shape)
        scores: Tensor = sddmm(pairs, self.users, self.items.mT)
        labels = torch.zeros_like(scores)
        labels[: observed.shape[1]] = 1.0
        return nn.functional.binary_cross_entropy_with_logits(scores, labels)


def hidden_pairs(users: int, items: int, likes: int) -> Tensor:
    """(2, users * likes): the items that each user likes best, by hidden vectors of rank 4."""
    liking = torch.randn(users, 4) @ torch.randn(4, items)
    best = liking.topk(likes, dim=1).indices
    return torch.stack([torch.arange(users).repeat_interleave(likes), best.flatten()])


def main(users: int = 300, items: int = 200, steps: int = 60) -> float:
    """Train on half of the pairs; print and return how often an unseen one has a larger score than
    a random one."""
    torch.manual_seed(0)
    pairs = hidden_pairs(users, items, likes=40)
    is_seen = torch.rand(pairs.shape[1]) < 0.5
    model = Recommender(users, items, features=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=3e-4)
    for _ in range(steps):
        loss = model.loss(pairs[:, is_seen], negatives=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    unseen = pairs[:, ~is_seen]
    others = torch.stack([unseen[0], torch.randint(items, unseen[1].shape)])
    with torch.no_grad():
        better, worse = (
            sddmm((*each, (users, items)), model.users, model.items.mT) for each in (unseen, others)
        )
    share = float((better > worse).float().mean())
    print(f"{int(is_seen.sum())} pairs: unseen ones rank above random ones in {share:.3f}")
    return share


if __name__ == "__main__":
    main()
