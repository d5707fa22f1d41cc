"""Reads LeetCUDA's published HGEMM and SGEMM logs: other GPUs, hence context, not comparison."""

from __future__ import annotations

import csv
from pathlib import Path

SOURCE = "https://github.com/xlite-dev/LeetCUDA"
LOG = Path(__file__).with_name("published.csv")


def best(family: str, shapes: list[str], gpu: str) -> dict[str, dict[str, float]]:
    """TFLOP/s by variant and shape ("MxNxK"): the best of the log's repetitions."""
    table: dict[str, dict[str, float]] = {}
    with LOG.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shape = f"{row['M']}x{row['N']}x{row['K']}"
            if row["family"] != family or row["gpu"] != gpu or shape not in shapes:
                continue
            by_shape = table.setdefault(row["variant"], {})
            by_shape[shape] = max(by_shape.get(shape, 0.0), float(row["tflops"]))
    return table
