"""Seeds of dropout in the parts of a distributed matrix."""

from __future__ import annotations

import torch

from sddmm.distributed.dropout import seed_of_part


def test_no_two_parts_drop_alike_where_all_ranks_draw_one_seed() -> None:
    seed = torch.tensor([2**63 - 2])
    seeds = [seed_of_part(seed, place, part) for place in range(9) for part in range(40)]
    numbers = {int(x) for x in seeds if x is not None}
    assert len(numbers) == 9 * 40
    assert int(seed) not in numbers


def test_without_dropout_there_is_no_seed() -> None:
    assert seed_of_part(None, 1, 2) is None
