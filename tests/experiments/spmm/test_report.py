"""The report of SpMM: ours beside its yardstick, cuSPARSE and the other peers."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from experiments.spmm.objective import SPMM
from experiments.spmm.record import Record


def record(method: str, us: float | None, **changes: Any) -> Record:
    own: dict[str, Any] = {
        "session": "s", "matrix": "10x10", "definition": {}, "m": 10, "n": 10, "nnz": 50, "k": 8,
        "dtype": "float32", "seed": 0, "family": "uniform",
        "environment": {"device": "a CPU", "threads": 2, "libraries": {"torch": "9.9"}},
    }  # fmt: skip
    own |= {
        "status": "skipped" if us is None else "ok",
        "reason": "no such library" if us is None else "",
        "samples_ms": [] if us is None else [us / 1e3],
        "first_call_ms": [] if us is None else [us / 1e2],
        **changes,
    }
    return Record(key=f"{method}-{own['k']}-{own['family']}", method=method, **own)


def problem(us: dict[str, float | None], **changes: Any) -> list[Record]:
    """The records of one problem; a method that begins with spmm_ is a kernel by its name."""
    kernels = {name: name if name.startswith("spmm_") else "" for name in us} | {"ours": "spmm_a"}
    return [record(name, us[name], kernel=kernels[name], **changes) for name in us]


RECORDS = [
    *problem({
        "ours": 10, "spmm_a": 10.5, "spmm_b": 8, "row_gather": 9, "sddmm_tiles": None,
        "cusparse_alg2": 30, "cusparse_alg3": 15, "torch_csr": 50,
    }),
    *problem(
        {"ours": 20, "spmm_a": 20, "row_gather": 19, "sddmm_tiles": 10, "cusparse_alg2": 19,
         "torch_csr": 25},
        family="window", k=64,
    ),
]  # fmt: skip


FAMILIES = ("uniform", "window")


def figures(records: list[Record] = RECORDS) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(SPMM.pages(records)["report.csv"])))


def test_ours_is_set_beside_its_yardstick_which_on_masks_is_the_tile_kernel() -> None:
    even, mask = figures()
    assert (float(even["over_yardstick"]), even["limit"]) == (pytest.approx(10 / 9), "1.35")
    assert (float(mask["over_yardstick"]), mask["limit"]) == (2.0, "1.6")
    (transposed,) = figures(problem({"ours": 10, "row_gather": 9}, transpose=True))
    assert transposed["limit"] == "1.6"
    page = SPMM.pages(RECORDS)["summary.md"]
    assert "**Above the limit** (1)\n\n* 10x10 d=64 float32: 2.00 of 1.6, spmm_a 20.0 us" in page


def test_the_best_algorithm_of_cusparse_counts() -> None:
    even, mask = figures()
    assert (float(even["cusparse_over_ours"]), even["other"]) == (1.5, "torch_csr")
    assert float(mask["cusparse_over_ours"]) == pytest.approx(0.95)
    page = SPMM.pages(RECORDS)["summary.md"]
    assert "(1)\n\n* 10x10 d=64 float32: cusparse_alg2 19.0 us, ours 20.0" in page


def test_three_percent_are_no_loss() -> None:
    near = problem({"ours": 10.2, "cusparse_alg2": 10})
    assert "**A peer is faster by more than 3 %** (0)" in SPMM.pages(near)["summary.md"]


def test_a_yardstick_is_no_peer() -> None:
    (only,) = figures(problem({"ours": 10, "row_gather": 5}))
    assert (only["other"], only["cusparse_over_ours"]) == ("", "")


def test_a_kernel_that_would_be_faster_than_the_choice_is_named() -> None:
    even, mask = figures()
    assert (even["best_kernel"], float(even["regret"])) == ("spmm_b", 1.25)
    assert float(mask["regret"]) == 1.0
    assert (
        "* 10x10 d=8 float32: 1.25, spmm_a 10.0 us, spmm_b 8.0 us"
        in (SPMM.pages(RECORDS)["summary.md"])
    )


def test_records_that_were_not_interleaved_with_ours_do_not_count() -> None:
    earlier = problem({"ours": 50, "cusparse_alg3": 1, "torch_csr": 2}, session="earlier")
    even, _ = figures([*earlier, *RECORDS])
    assert (float(even["us"]), float(even["cusparse_over_ours"])) == (10.0, 1.5)
    assert even["other"] == "torch_csr"


def test_the_summary_has_geometric_means_by_class() -> None:
    lines = SPMM.pages(RECORDS)["summary.md"].splitlines()
    header, _, uniform, window, whole = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[:5]
    ]
    cells = dict(zip(header, whole, strict=True))
    assert (uniform[0], window[0], cells["problems"]) == ("uniform", "window", "2")
    assert cells["ours / yardstick, mean"] == f"{(10 / 9 * 2) ** 0.5:.3f}"
    assert cells["cuSPARSE / ours, mean"] == f"{(1.5 * 0.95) ** 0.5:.3f}"
    assert (cells["least"], cells["lost to a peer"], cells["above the limit"]) == ("0.95", "1", "1")


def test_the_column_view_is_in_the_table_and_the_way_of_the_library_in_the_csv() -> None:
    records = problem({"ours": 10, "cusparse_alg2": 20}, transpose=True)
    records[0].column_view_ms, records[1].variant = 0.5, "op(A) = T"
    page = SPMM.pages(records)["report.md"]
    assert "column view us" in page
    (row,) = figures(records)
    assert (float(row["column_view_us"]), row["cusparse_alg2_way"]) == (500.0, "op(A) = T")
    assert "column view us" not in SPMM.pages(RECORDS)["report.md"]
    assert "* sddmm_tiles: skipped: no such library (1)" in SPMM.pages(RECORDS)["report.md"]


def test_products_of_both_directions_are_in_one_report() -> None:
    pages = SPMM.pages([*RECORDS, *problem({"ours": 10, "row_gather": 9}, transpose=True, k=9)])
    report, summary = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in pages[name].splitlines()]
        for name in ("report.md", "summary.md")
    )
    (header,) = (cells for cells in report if cells[0] == "class")
    rows = [dict(zip(header, cells, strict=True)) for cells in report if cells[0] in FAMILIES]
    assert {row["d"]: row["transpose"] for row in rows} == {"8": "", "9": "T", "64": ""}
    assert "cuSPARSE sorted beforehand / ours, mean" in summary[0]


def transposed(us: dict[str, float | None]) -> dict[str, str]:
    """The pages of one problem of the transpose."""
    return SPMM.pages(problem(us, transpose=True))


def cells_of(page: str) -> dict[str, str]:
    """The last row of the page's first table."""
    lines = page[page.index("| class") :].split("\n\n")[0].splitlines()
    header, *_, last = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return dict(zip(header, last, strict=True))


TIMES: dict[str, float | None] = {
    "ours": 10, "cusparse_alg2": 30, "cusparse_alg3": 8, "cusparse_alg2_permuted": 32,
    "cusparse_alg3_permuted": 12, "torch_csr": 50,
}  # fmt: skip


def test_cusparse_of_the_transpose_counts_with_weights_in_either_order() -> None:
    pages = transposed(TIMES)
    (row,) = csv.DictReader(io.StringIO(pages["report.csv"]))
    assert float(row["cusparse_over_ours"]) == pytest.approx(0.8)
    assert float(row["cusparse_permuted_over_ours"]) == pytest.approx(1.2)
    assert float(row["cusparse_alg2_permuted_us"]) == pytest.approx(32)
    assert row["other"] == "torch_csr"
    cells = cells_of(pages["report.md"])
    assert cells["cuSPARSE sorted beforehand / ours"] == "0.80"
    assert cells["cuSPARSE permuted in each call / ours"] == "1.20"
    whole = cells_of(pages["summary.md"])
    assert whole["cuSPARSE sorted beforehand / ours, mean"] == "0.800"
    assert whole["cuSPARSE permuted in each call / ours, mean"] == "1.200"
    assert (whole["least"], whole["lost to a peer, sorted beforehand"]) == ("0.80", "1")


def test_the_summary_says_in_which_order_the_weights_of_a_faster_peer_are() -> None:
    title = "**A peer is faster by more than 3 %, with weights"
    sorted_beforehand, permuted = f"{title} sorted beforehand**", f"{title} permuted in each call**"
    summary = transposed(TIMES)["summary.md"]
    assert f"{sorted_beforehand} (1)\n\n* 10x10 d=8 float32: cusparse_alg3 8.0 us" in summary
    assert f"{permuted} (0)" in summary
    slower = transposed({**TIMES, "cusparse_alg3_permuted": 9})["summary.md"]
    assert f"{permuted} (1)\n\n* 10x10 d=8 float32: cusparse_alg3_permuted 9.0 us" in slower
    gathered = transposed({**TIMES, "gather_index_add": 7})["summary.md"]
    assert f"{permuted} (1)\n\n* 10x10 d=8 float32: gather_index_add 7.0 us" in gathered


def test_a_list_is_only_of_what_was_measured() -> None:
    assert "permuted" not in transposed({"ours": 10, "cusparse_alg3": 8})["summary.md"]
    refused = dict.fromkeys(("cusparse_alg2_permuted", "cusparse_alg3_permuted"))
    straight = SPMM.pages(problem(TIMES | refused))
    assert "**A peer is faster by more than 3 %** (1)" in straight["summary.md"]
    assert "| cuSPARSE / ours, mean" in straight["summary.md"]
    assert "* cusparse_alg3_permuted: skipped: no such library (1)" in straight["report.md"]
