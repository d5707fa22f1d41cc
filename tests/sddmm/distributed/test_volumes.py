"""The choice of a way, by the counts of a pattern and the room that ranks have for rows."""

from __future__ import annotations

import pytest

from sddmm.distributed.blocks import Counts
from sddmm.distributed.volumes import LINKS, choose_way


def counts(touched: int) -> Counts:
    """Two ranks of 1000 rows and columns, each of which touches so many rows of the other one."""
    return Counts(1, [1000] * 2, [1000] * 2, [[0, touched], [touched, 0]], [[5000]] * 2)


@pytest.mark.parametrize(("touched", "panels", "slices"), [(10, "rows", "row_slices"),
                                                           (1000, "ring", "slices")])  # fmt: skip
def test_products_go_by_slices_where_a_room_holds_all_rows_that_come(
    touched: int, panels: str, slices: str
) -> None:
    asked: list[int] = []

    def finds_room(size: int) -> bool:
        asked.append(size)
        return size <= 1024 * touched

    chosen, refused = choose_way(counts(touched), LINKS["memory"], finds_room)
    assert chosen == slices
    assert next(iter(refused)) == panels
    assert "partial results" in refused[panels]  # type: ignore[index]
    assert asked == [1024 * touched]
    chosen, refused = choose_way(counts(touched), LINKS["memory"], lambda size: False)
    assert chosen == panels
    assert panels not in refused


def test_without_shared_memory_rows_come_by_panels() -> None:
    assert choose_way(counts(1000), LINKS["gloo"])[0] == "ring"


def test_a_rank_that_touches_nothing_of_others_asks_for_no_room() -> None:
    chosen, refused = choose_way(counts(0), LINKS["memory"], lambda size: size == 0)
    assert chosen in ("rows", "row_slices")
    assert refused
