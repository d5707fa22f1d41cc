"""The fragment layouts against raw values dumped from a GPU, and against the algebra they serve."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from gemm_core import fragments
from gemm_core.emulation.kernel import HEADERS
from gemm_core.fragments import LAYOUTS, layout, ldmatrix_address
from gemm_core.runtime.compile import INCLUDE_FOLDER
from tests.conftest import DATA

PROGRAMS = Path(__file__).parent / "programs"
COMPILER = shutil.which("g++")

WMMA_SHAPES = {"m16n16k16": (16, 16), "m32n8k16": (32, 8), "m8n32k16": (8, 32)}


def dumped() -> dict[str, dict[tuple[int, int], float]]:
    values: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    with open(DATA / "wmma_accumulator_dump.csv", newline="") as file:
        for row in csv.DictReader(file):
            values[row["shape"]][int(row["lane"]), int(row["element"])] = float(row["value"])
    return values


def product_of_the_dump(m: int, n: int) -> np.ndarray:
    """C = A B of the dump: A[r][k] = 16 r + k, B[k][c] = n k + c."""
    return np.arange(m * 16.0).reshape(m, 16) @ np.arange(16.0 * n).reshape(16, n)


def every_slot(lay: fragments.FragmentLayout) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(lay.lanes)[:, None], np.arange(lay.elements)[None, :]


@pytest.mark.parametrize("shape", WMMA_SHAPES)
def test_all_256_dumped_accumulator_values_lie_where_the_layout_says(shape: str) -> None:
    product = product_of_the_dump(*WMMA_SHAPES[shape])
    values = dumped()[shape]
    assert len(values) == 256
    for (lane, element), value in values.items():
        row, column = layout(shape).position(lane, element)
        assert product[row, column] == value, (lane, element)


@pytest.mark.parametrize(
    ("lane", "element", "printed", "true"),
    [
        (10, 4, (2, 14), (2, 12)),
        (10, 5, (2, 15), (2, 13)),
        (11, 4, (2, 16), (2, 14)),
        (11, 5, (2, 17), (2, 15)),
    ],
)
def test_the_published_arranged_table_contradicts_its_own_dump_in_four_cells(
    lane: int, element: int, printed: tuple[int, int], true: tuple[int, int]
) -> None:
    value = dumped()["m16n16k16"][lane, element]
    product = product_of_the_dump(16, 16)
    assert product[true] == value
    assert printed[1] >= 16 or product[printed] != value
    assert tuple(int(x) for x in layout("m16n16k16").position(lane, element)) == true


@pytest.mark.parametrize("lay", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_is_a_bijection(lay: fragments.FragmentLayout) -> None:
    row, column = lay.position(*every_slot(lay))
    assert len(set(zip(row.ravel(), column.ravel(), strict=True))) == lay.rows * lay.columns
    assert lay.lanes * lay.elements == lay.rows * lay.columns
    lane, element = lay.owner(row, column)
    np.testing.assert_array_equal(lane, np.broadcast_to(every_slot(lay)[0], lane.shape))
    np.testing.assert_array_equal(element, np.broadcast_to(every_slot(lay)[1], lane.shape))
    matrix = np.arange(lay.rows * lay.columns).reshape(lay.rows, lay.columns)
    np.testing.assert_array_equal(lay.gather(lay.scatter(matrix)), matrix)


def mma_by_lanes(a: np.ndarray, b: np.ndarray, name: str, kind: str = "") -> np.ndarray:
    """mma.sync as the hardware defines it: every operand reached through its fragment."""
    lay_a, lay_b = layout(f"{name}{kind}_a"), layout(f"{name}{kind}_b")
    lay_c = layout(f"{name}_c")
    frag_a, frag_b = lay_a.scatter(a), lay_b.scatter(b)
    frag_c = np.zeros((lay_c.lanes, lay_c.elements))
    for lane in range(32):
        for i in range(lay_c.elements):
            row, column = lay_c.position(lane, i)
            for k in range(a.shape[1]):
                lane_a, element_a = lay_a.owner(row, k)
                lane_b, element_b = lay_b.owner(k, column)
                frag_c[lane, i] += frag_a[lane_a, element_a] * frag_b[lane_b, element_b]
    return lay_c.gather(frag_c)


@pytest.mark.parametrize(
    ("name", "kind", "k"),
    [("mma_m16n8k16", "", 16), ("mma_m16n8k8", "", 8), ("mma_m16n8k8", "_tf32", 8)],
)
def test_a_product_through_the_fragments_is_the_plain_product(name: str, kind: str, k: int) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 8, (16, k)).astype(float), rng.integers(-8, 8, (k, 8)).astype(float)
    np.testing.assert_array_equal(mma_by_lanes(a, b, name, kind), a @ b)


def test_known_slots_of_the_mma_operands() -> None:
    """Corners taken from the figures of the PTX ISA, which a bijection alone would not pin."""
    known = {
        ("mma_m16n8k16_a", 5, 2): (9, 2),
        ("mma_m16n8k16_a", 5, 4): (1, 10),
        ("mma_m16n8k16_b", 5, 2): (10, 1),
        ("mma_m16n8k8_a", 5, 2): (9, 2),
        ("mma_m16n8k8_b", 5, 1): (3, 1),
        ("mma_m16n8k8_tf32_a", 5, 1): (9, 1),
        ("mma_m16n8k8_tf32_a", 5, 2): (1, 5),
        ("mma_m16n8k8_tf32_b", 5, 1): (5, 1),
        ("mma_m16n8k16_c", 5, 2): (9, 2),
        ("wgmma_m64n16_d", 37, 6): (25, 10),
        ("wgmma_m64k16_a", 127, 7): (63, 15),
        ("ldmatrix_x4", 5, 3): (9, 3),
        ("ldmatrix_x4_trans", 5, 3): (11, 1),
    }
    for (name, lane, element), expected in known.items():
        assert tuple(int(x) for x in layout(name).position(lane, element)) == expected, name


def test_c_fragments_of_two_n_blocks_are_the_a_fragment_of_the_next_product() -> None:
    c, a = layout("mma_m16n8k16_c"), layout("mma_m16n8k16_a")
    lane = np.arange(32)
    for i in range(8):
        row, column = c.position(lane, i % 4)
        a_row, a_k = a.position(lane, i)
        np.testing.assert_array_equal(a_row, row)
        np.testing.assert_array_equal(a_k, column + 8 * (i // 4))


@pytest.mark.parametrize(("operand", "trans"), [("a", False), ("a", True), ("b", False)])
def test_ldmatrix_x4_delivers_mma_fragments_from_its_addresses(operand: str, trans: bool) -> None:
    """Addresses, then the data layout, give the operand fragment that mma.sync wants."""
    stored = np.arange(256).reshape(16, 16)
    row, column = fragments.ldmatrix_address(np.arange(32), operand)
    matrices = np.stack([stored[r, c : c + 8] for r, c in zip(row, column, strict=True)])
    registers = layout("ldmatrix_x4_trans" if trans else "ldmatrix_x4").scatter(matrices)
    if operand == "a" and not trans:
        expected = layout("mma_m16n8k16_a").scatter(stored)
    else:  # two n-blocks of B, (k, n): row-major read with .trans, or stored as (n, k) rows
        b = stored if trans else stored.T
        block = layout("mma_m16n8k16_b")
        expected = np.hstack([block.scatter(b[:, :8]), block.scatter(b[:, 8:])])
    np.testing.assert_array_equal(registers, expected)


def test_wgmma_accumulator_exists_for_every_legal_n_and_no_other() -> None:
    for n in range(8, 257, 8):
        lay = layout(f"wgmma_m64n{n}_d")
        assert (lay.rows, lay.columns, lay.elements) == (64, n, n // 2)
        row, column = lay.position(*every_slot(lay))
        assert np.unique(row * n + column).size == 64 * n
    with pytest.raises(ValueError, match="multiple of 8"):
        layout("wgmma_m64n12_d")


def test_the_128_byte_swizzle_permutes_16_byte_units_within_rows_without_bank_conflicts() -> None:
    byte = np.arange(4096)
    swizzled = fragments.swizzle_128b(byte)
    np.testing.assert_array_equal(fragments.swizzle_128b(swizzled), byte)
    np.testing.assert_array_equal(swizzled // 128, byte // 128)
    np.testing.assert_array_equal(swizzled % 16, byte % 16)
    assert fragments.swizzle_128b(128) == 128 + 16
    assert fragments.swizzle_128b(7 * 128) == 7 * 128 + 7 * 16
    assert fragments.swizzle_128b(1024) == 1024
    column_of_units = fragments.swizzle_128b(np.arange(8) * 128) // 16 % 8
    assert len(set(column_of_units)) == 8


def test_positions_outside_a_fragment_are_refused() -> None:
    lay = layout("m16n16k16")
    with pytest.raises(ValueError, match=r"lane must lie in 0\.\.31"):
        lay.position(32, 0)
    with pytest.raises(ValueError, match=r"column must lie in 0\.\.15"):
        lay.owner(0, -1)
    with pytest.raises(TypeError, match="integers"):
        lay.position(0.5, 0)
    with pytest.raises(ValueError, match="unknown layout 'm1'; choose from"):
        layout("m1")


def test_the_table_shows_lane_and_element_in_each_cell() -> None:
    lines = fragments.as_table(layout("m16n16k16")).splitlines()
    assert len(lines) == 3 + 16
    assert lines[3 + 2].split("|")[1].split()[12:16] == ["10:4", "10:5", "11:4", "11:5"]


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_the_twin_of_the_fragment_layouts_agrees_with_python(tmp_path: Path) -> None:
    command = [str(COMPILER), "-std=c++17", "-w", f"-I{HEADERS}", f"-I{INCLUDE_FOLDER}"]
    source = str(PROGRAMS / "fragments.cpp")
    subprocess.run([*command, source, "-o", tmp_path / "print"], check=True)
    printed = subprocess.run([tmp_path / "print"], capture_output=True, text=True, check=True)
    lines = [line.split() for line in printed.stdout.splitlines()]
    assert len(lines) == 32 * (4 + 8 + 4 + 4 + 2 + 3 * 8 + 2) + 128 * 64
    for name, *numbers in lines:
        lane, element, row, column = map(int, numbers)
        if name.startswith("address_"):
            expected = ldmatrix_address(lane, name.removeprefix("address_"))
        else:
            expected = LAYOUTS[name].position(lane, element)
        assert (row, column) == tuple(map(int, expected)), (name, lane, element)
