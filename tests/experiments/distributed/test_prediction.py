"""The prediction for many GPUs follows from the formulas and the measured rates."""

from __future__ import annotations

import pytest

from experiments.distributed import prediction
from experiments.distributed.prediction import Layout, rows


@pytest.mark.parametrize("gpus", prediction.GPUS)
@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_a_gpu_receives_what_the_formula_of_the_algorithm_says(gpus: int, replicas: int) -> None:
    p, c = gpus, replicas
    assert Layout(p, c, 50).share == pytest.approx((c - 1) / p + 1 / c - 1 / p)


def test_messages_on_one_host_take_their_bytes_over_the_measured_rate() -> None:
    received = 7 * (1 << 21) * 256 * 2  # seven panels of 2^21 rows of float16
    assert Layout(8, 1, 0).messages_us == pytest.approx(received / 370e3 + 7 * 25)


@pytest.mark.parametrize("matrix", prediction.MATRICES)
def test_from_the_degree_of_the_table_on_kernels_take_as_long_as_messages(matrix: str) -> None:
    rate = prediction.nonzeros_per_us(prediction.MATRICES[matrix])
    for row in rows():
        text = row[f"hidden from degree, {matrix}"].replace(",", "")
        degree = 1e9 if text == "never" else float(text)
        layout = Layout(int(row["GPUs"]), int(row["replicas"]), degree)
        if text == "never":
            assert layout.compute_us(rate) < layout.messages_us
        else:
            assert layout.compute_us(rate) == pytest.approx(layout.messages_us, rel=0.01)


def test_replicas_are_those_with_the_shortest_messages() -> None:
    for row in rows()[1::2]:
        gpus, chosen = int(row["GPUs"]), int(row["replicas"])
        for other in (chosen // 2, chosen * 2):
            if 1 <= other <= gpus:
                assert Layout(gpus, other, 50).messages_us >= Layout(gpus, chosen, 50).messages_us
