"""Every kernel of the ladder computes the right product on a GPU, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from filelock import FileLock

from gemm_core import gemm
from gemm_core.ladder.registry import KERNELS
from gemm_core.ladder.spec import KERNEL_FOLDER, GemmProblem, KernelSpec
from gemm_core.runtime.compile import cache_folder, compile_all
from gemm_core.runtime.device import device

pytestmark = pytest.mark.gpu

CASES = [
    pytest.param(spec, dtype, rows, sums, id=f"{name}-{str(dtype)[6:]}-{rows}-{sums}")
    for name, spec in KERNELS.items()
    for dtype in spec.dtypes
    for rows in spec.b_layouts
    for sums in spec.accumulates
]
every_kernel = pytest.mark.parametrize(("spec", "dtype", "b_layout", "accumulate"), CASES)


@pytest.fixture(scope="module", autouse=True)
def _compiled_by_all_cores() -> None:
    """Compiles the variants that most tests use in parallel, before the tests need them."""
    jobs = []
    for case in CASES:
        spec, dtype, b_layout, accumulate = case.values
        for aligned, c_aligned in ((True, False), (True, True), (False, False)):
            problem = GemmProblem(
                m=16, n=16, k=16, dtype=dtype, out_dtype=dtype, b_layout=b_layout,
                aligned_a=aligned, aligned_b=aligned, c_vec2_aligned=c_aligned, aligned_c=c_aligned,
                accumulate=accumulate, precision=spec.precision,
            )  # fmt: skip
            jobs.append((KERNEL_FOLDER / spec.source, spec.macros(problem), device(0).arch))
    cache_folder().mkdir(parents=True, exist_ok=True)
    with FileLock(cache_folder() / "tests.lock"):  # one test process compiles for all
        compile_all(jobs)


# Unit roundoff of the type to which a kernel rounds its operands.
OPERAND_ROUNDING = {"ieee": 0.0, "tf32x3": 2.0**-21, "tf32": 2.0**-11}


def stored(rows: int, cols: int, dtype: torch.dtype, offset: int = 0, pad: int = 0) -> torch.Tensor:
    """Random normal (rows, cols), `offset` elements into its memory and with `pad` between rows."""
    memory = torch.empty(offset + rows * (cols + pad), dtype=dtype, device="cuda")
    view = memory[offset:].view(rows, cols + pad)[:, :cols]
    return view.copy_(torch.randn(rows, cols, device="cuda"))


def operands(
    m: int, n: int, k: int, dtype: torch.dtype, b_layout: str, offset: int = 0, pad: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    a = stored(m, k, dtype, offset, pad)
    if b_layout == "nk":
        return a, stored(n, k, dtype, offset, pad).T
    return a, stored(k, n, dtype, offset, pad)


def sizes(spec: KernelSpec, m: int, n: int, k: int) -> tuple[int, int, int]:
    """m, n, k, rounded up to full tiles for a kernel that takes no others."""
    if not spec.full_tiles_only:
        return m, n, k
    return tuple(-(-size // part) * part for size, part in zip((m, n, k), spec.tile, strict=True))


def run(
    spec: KernelSpec, a: torch.Tensor, b: torch.Tensor, accumulate: str, guard: int | None = None
) -> torch.Tensor:
    """C by this kernel, stored in the middle of a NaN-filled field whose border must stay NaN.

    The rows of C are aligned where the kernel stores by TMA, unless `guard` says otherwise.
    """
    m, n = a.shape[0], b.shape[1]
    stores_by_tma = spec.tma is not None and spec.tma.stores
    guard = guard or (8 if stores_by_tma else 3)
    width = n + 2 * guard
    width = -(-width // 8) * 8 if guard == 8 else width
    field = torch.full((m + 2 * guard, width), torch.nan, dtype=a.dtype, device="cuda")
    out = field[guard : guard + m, guard : guard + n]
    copies = a.clone(), b.clone()  # compared by bits, as NaN differs from itself
    gemm(a, b, out=out, kernel=spec.name, precision=spec.precision, accumulate=accumulate)
    border = field.clone()
    border[guard : guard + m, guard : guard + n] = torch.nan
    assert border.isnan().all(), "wrote outside C"
    for operand, copy in zip((a, b), copies, strict=True):
        bits = torch.int16 if operand.element_size() == 2 else torch.int32
        assert torch.equal(operand.view(bits), copy.view(bits)), "changed an operand"
    return out


def assert_right(
    spec: KernelSpec, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, accumulate: str = "fp32"
) -> None:
    """|C - AB| <= gamma_k |A||B| + rounding of C, element by element, in float64."""
    k = a.shape[1]
    truth, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    u = 2.0**-24 if accumulate == "fp32" else 2.0**-11
    # mma.sync truncates its sums: twice the unit roundoff of rounding to nearest.
    gamma = 2 * (k + 2) * u / (1 - 2 * (k + 2) * u) + 2.1 * OPERAND_ROUNDING[spec.precision]
    info = torch.finfo(c.dtype)
    bound = gamma * magnitude + info.eps / 2 * (truth.abs() + gamma * magnitude)
    bound += info.smallest_normal * info.eps
    wrong = ~((c.double() - truth).abs() <= bound)
    assert not wrong.any(), f"{int(wrong.sum())} wrong, first at {wrong.nonzero()[0].tolist()}"


def shapes_of(spec: KernelSpec) -> Iterator[tuple[int, int, int]]:
    """Sizes of 1, around the tile, prime; odd and even K tiles; fewer K tiles than stages."""
    tm, tn, tk = spec.tile
    if spec.full_tiles_only:
        yield from [(tm, tn, tk), (2 * tm, tn, 2 * tk), (5 * tm, 3 * tn, 7 * tk)]
        return
    yield from [(1, 2, 1), (2, 1, 3), (tm, tn, tk), (2 * tm, tn, 2 * tk), (tm, 2 * tn, 7 * tk)]
    yield from [(tm - 1, tn + 1, tk + 1), (tm + 1, tn - 1, max(1, tk - 1)), (97, 61, 131)]
    yield from [(3 * tm + 5, 2, 5 * tk + 3), (2, 3 * tn + 5, 1000)]


@every_kernel
def test_any_shape_is_right(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str
) -> None:
    for m, n, k in shapes_of(spec):
        if min(n, k) == 1:  # the strides of such an operand do not show its layout
            b_layout = spec.b_layouts[-1]
        a, b = operands(m, n, k, dtype, b_layout)
        if b_layout == "nk" and b.stride(1) == 1:
            continue
        assert_right(spec, a, b, run(spec, a, b, accumulate), accumulate)


@every_kernel
def test_k_of_zero_gives_zeros(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str
) -> None:
    m, n, _ = sizes(spec, 70, 90, 0)
    a = torch.empty(m, 8, dtype=dtype, device="cuda")[:, :0]
    b = torch.empty(n, 8, dtype=dtype, device="cuda")[:, :0].T
    if b_layout == "kn":
        b = torch.empty(0, n, dtype=dtype, device="cuda")
    assert not run(spec, a, b, accumulate).any()


@every_kernel
def test_small_integers_are_exact(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str
) -> None:
    a, b = operands(*sizes(spec, 200, 300, 130), dtype, b_layout)
    a.copy_(torch.randint(-2, 3, a.shape, device="cuda"))
    b.copy_(torch.randint(-2, 3, b.shape, device="cuda"))
    expected = (a.double() @ b.double()).to(dtype)
    assert torch.equal(run(spec, a, b, accumulate), expected)


@every_kernel
def test_permutations_move_rows_and_columns(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str
) -> None:
    """One-hot rows show a wrong index that random data would hide in its noise."""
    size = 160
    order = torch.randperm(size, device="cuda")
    a = torch.eye(size, device="cuda")[order].to(dtype)
    _, b = operands(size, size, size, dtype, b_layout)
    b.copy_(torch.randint(-99, 100, b.shape, device="cuda"))
    assert torch.equal(run(spec, a, b, accumulate), b[order])


@every_kernel
@pytest.mark.parametrize(("offset", "pad"), [(1, 0), (0, 1), (3, 5), (8, 8)])
def test_any_alignment_is_right(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str, offset: int, pad: int
) -> None:
    a, b = operands(*sizes(spec, 140, 150, 70), dtype, b_layout, offset, pad)
    if spec.full_tiles_only and (offset, pad) != (8, 8):
        with pytest.raises(ValueError, match="rows that start at multiples of 16 bytes"):
            run(spec, a, b, accumulate)
        return
    assert_right(spec, a, b, run(spec, a, b, accumulate, guard=3), accumulate)


@every_kernel
def test_nan_and_infinity_reach_their_row_and_column_only(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str
) -> None:
    a, b = operands(*sizes(spec, 140, 150, 70), dtype, b_layout)
    a[17, 5], b[69, 139] = torch.nan, torch.inf
    c = run(spec, a, b, accumulate)
    expected = torch.zeros_like(c, dtype=torch.bool)
    expected[17], expected[:, 139] = True, True
    assert torch.equal(~c.isfinite(), expected)


@every_kernel
def test_infinity_beside_zeros_and_large_numbers(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str
) -> None:
    """Zero times infinity is NaN; anything else times infinity is infinite, whatever its size."""
    a, b = operands(*sizes(spec, 140, 150, 70), dtype, b_layout)
    a.fill_(1)
    a[90] = -1
    a[17, 5], a[90, 69] = torch.inf, -torch.inf
    b.fill_(0)
    b[:, 30], b[:, 31], b[:, 32] = 1 + 2.0**-7, 5000.3, 2.0**-10
    c = run(spec, a, b, accumulate)
    assert (c[17, 30:33] == torch.inf).all()
    assert (c[90, 30:33] == -torch.inf).all()
    assert int(c.isnan().sum()) == 2 * (c.shape[1] - 3)


@every_kernel
def test_a_hundred_runs_give_the_same_bits(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str
) -> None:
    a, b = operands(*sizes(spec, 300, 260, 500), dtype, b_layout)
    first = run(spec, a, b, accumulate).clone()
    options = {"kernel": spec.name, "precision": spec.precision, "accumulate": accumulate}
    for _ in range(100):
        assert torch.equal(gemm(a, b, **options), first)


@every_kernel
def test_each_call_reads_the_tensors_that_it_is_given(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str
) -> None:
    """The launch of the first call serves the later ones, at other addresses."""
    shape = sizes(spec, 200, 136, 72)
    sets = [
        (*operands(*shape, dtype, b_layout), torch.empty(shape[:2], dtype=dtype, device="cuda"))
        for _ in range(3)
    ]
    options = {"kernel": spec.name, "precision": spec.precision, "accumulate": accumulate}
    for a, b, out in 2 * sets:
        out.fill_(torch.nan)
        gemm(a, b, out=out, **options)
        assert_right(spec, a, b, out, accumulate)


@every_kernel
def test_streams_and_graphs(
    spec: KernelSpec, dtype: torch.dtype, b_layout: str, accumulate: str
) -> None:
    a, b = operands(*sizes(spec, 300, 260, 100), dtype, b_layout)
    fresh_a = torch.randn_like(a)
    options = {"kernel": spec.name, "precision": spec.precision, "accumulate": accumulate}
    gemm(a, b, **options)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        a.copy_(fresh_a)  # late: a kernel on another stream would read the old values
        c = gemm(a, b, **options)
    stream.synchronize()
    assert_right(spec, fresh_a, b, c, accumulate)
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(c)
    with torch.cuda.graph(graph):
        gemm(a, b, out=out, **options)
    for _ in range(2):
        a.normal_()
        out.fill_(torch.nan)
        graph.replay()
        assert_right(spec, a, b, out, accumulate)


def test_the_chooser_serves_every_problem() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for m, n, k in ((0, 5, 3), (5, 0, 3), (5, 7, 0), (1, 1, 1), (1000, 3, 50), (513, 700, 129)):
            a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
            a, b = a.to(dtype), b.to(dtype)
            for left, right in ((a, b), (a, b.T.contiguous().T), (a.T.contiguous().T, b)):
                torch.testing.assert_close(gemm(left, right), left @ right, rtol=2e-2, atol=2e-2)


def test_a_kernel_that_refuses_says_why() -> None:
    a = torch.randn(8, 8, device="cuda")
    with pytest.raises(ValueError, match="mma_tf32_128x128x32_stage3 needs b stored as rows of n"):
        gemm(a, a, kernel="mma_tf32_128x128x32_stage3", precision="tf32")


@pytest.mark.parametrize("b_layout", ["nk", "kn"])
def test_rows_that_are_far_apart(b_layout: str) -> None:
    """A strided operand is copied; where the rows themselves are long, another kernel serves."""
    wide = torch.randn(300, 2**23 + 8, device="cuda").half()
    b = torch.randn(*((40, 64) if b_layout == "nk" else (64, 40)), device="cuda").half()
    b = b.T if b_layout == "nk" else b
    torch.testing.assert_close(gemm(wide[:, :64], b), wide[:, :64] @ b, rtol=1e-2, atol=1e-1)
    ones = torch.ones(2**23 + 8, 8, dtype=torch.float16, device="cuda")
    wide.fill_(2.0**-24)
    c = gemm(wide, ones.T.contiguous().T if b_layout == "nk" else ones)
    assert (c - 0.5).abs().max() < 1e-2
    with pytest.raises(ValueError, match="start less than 2\\^24 bytes apart"):
        gemm(wide, ones, kernel="mma_128x128x32_stage4")


def test_more_than_two_billion_elements() -> None:
    a = torch.randn(70_000, 64, device="cuda").half()
    b = torch.randn(32_000, 64, device="cuda").half().T
    c = gemm(a, b)
    assert c.numel() > 2**31
    torch.testing.assert_close(c[-1], (a[-1:] @ b)[0], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(c[:, -1], (a @ b[:, -1:])[:, 0], rtol=1e-2, atol=1e-2)
