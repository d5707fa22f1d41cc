"""Dropout of attention weights: Philox as its authors publish it, and fair."""

from __future__ import annotations

import pytest
import torch

from sddmm.dropout import kept_factor, kept_factors, philox, threshold

# Counter, key and result of the known answers of philox4x32-10 in Random123 (kat_vectors).
KNOWN_ANSWERS = [
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([int(word, 16)]) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_its_known_answers(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    assert philox((c0, c1, c2, c3), (k0, k1)) == words(expected)


def test_the_counter_is_the_nonzero_and_the_head_and_the_key_the_seed() -> None:
    seed = torch.tensor([-(2**63) + 5])  # the words 5 and 2^31
    word = philox(words("9 0 2 0"), words("5 80000000"))[0]  # type: ignore[arg-type]
    p = (int(word) + 1) / 2**32  # dropped by so little
    assert kept_factors(seed, 3, 10, p, torch.float64)[2, 9] == 0
    assert kept_factors(seed, 3, 10, p - 2**-32, torch.float64)[2, 9] == kept_factor(p - 2**-32)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_each_head_drops_its_own_share(p: float) -> None:
    """Within five standard deviations; heads drop the same weight as often as chance has it."""
    nnz = 100_000
    dropped = kept_factors(torch.tensor([7]), 2, nnz, p, torch.float32) == 0
    deviation = (p * (1 - p) / nnz) ** 0.5
    assert ((dropped.double().mean(1) - p).abs() < 5 * deviation).all()
    both = (dropped[0] & dropped[1]).double().mean()
    assert abs(float(both) - p * p) < 5 * (p * p * (1 - p * p) / nnz) ** 0.5


def test_nothing_or_all_is_dropped_at_the_ends() -> None:
    seed = torch.tensor([3])
    assert (threshold(0.0), threshold(1.0)) == (0, 2**32)
    assert (kept_factors(seed, 1, 1000, 0.0, torch.float32) == 1).all()
    assert (kept_factors(seed, 1, 1000, 1.0, torch.float32) == 0).all()
