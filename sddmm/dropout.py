"""Dropout of attention weights: which are dropped follows from the seed, the head and the nonzero.

All implementations compute the same bits. Word 0 of Philox 4x32-10 (Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3) for

    counter = (nonzero mod 2^32, nonzero / 2^32, head, 0)
    key     = (seed mod 2^32, seed / 2^32)

is a number in 0 .. 2^32 - 1, uniformly distributed. The weight is dropped if it is below
`threshold(p)`, else multiplied by `kept_factor(p)`. The nonzero is its position in the pattern's
order, 0 .. nnz - 1, whatever order a kernel reads them in; heads count from 0; the seed is an int64
whose 64 bits are read as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

_WORD = 0xFFFFFFFF


def threshold(p: float) -> int:
    """The number of the 2^32 words for which a weight is dropped; 2^32 for p = 1."""
    return round(p * 2**32)


def kept_factor(p: float) -> float:
    """What multiplies a weight that is kept, so that its expectation stays: 1 / (1 - p)."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def kept_factors(seed: Tensor, heads: int, nnz: int, p: float, dtype: torch.dtype) -> Tensor:
    """0 for each weight that is dropped, `kept_factor` for the others; (heads, nnz) of `dtype`.

    seed: (1,) int64, on whose device the result is, and which the host does not read.
    """
    nonzero = torch.arange(nnz, device=seed.device)
    head = torch.arange(heads, device=seed.device)[:, None]
    counter = (nonzero & _WORD, nonzero >> 32, head, torch.zeros_like(head))
    words = philox(counter, (seed & _WORD, seed >> 32 & _WORD))[0]
    return (words >= threshold(p)).to(dtype) * kept_factor(p)


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of Philox 4x32-10. All are int64 tensors of words in 0 .. 2^32 - 1."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # int64 products wrap around, so their 64 bits are those of the unsigned product.
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (second >> 32 & _WORD) ^ c1 ^ k0, second & _WORD,
            (first >> 32 & _WORD) ^ c3 ^ k1, first & _WORD,
        )  # fmt: skip
        k0, k1 = k0 + KEY_STEPS[0] & _WORD, k1 + KEY_STEPS[1] & _WORD
    return c0, c1, c2, c3
