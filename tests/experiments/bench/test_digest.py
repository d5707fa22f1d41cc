"""A digest covers the code that a measurement stands on, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.bench import digest
from experiments.bench.digest import ROOT

METHODS = ROOT / "experiments" / "sddmm" / "methods"


def names(*sources: Path) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in digest.reached(sources)}


def test_ours_stands_on_the_kernels_of_this_package_and_on_what_launches_them() -> None:
    reached = names(METHODS / "ours.py")
    for kernel in (ROOT / "sddmm" / "backends" / "cuda" / "kernels").rglob("*.cu"):
        assert str(kernel.relative_to(ROOT)) in reached
    assert {
        "sddmm/plan.py",
        "sddmm/backends/cuda/backend.py",
        "gemm_core/runtime/launch.py",
    } <= reached
    assert "gemm_core/include/gemm_core/mainloop_mma.cuh" in reached


def test_nothing_that_is_measured_stands_on_how_it_is_shown_or_on_another_method() -> None:
    shown = {f"experiments/bench/{name}.py" for name in ("plots", "report", "table", "store")}
    for source in METHODS.glob("[!_]*.py"):
        reached = names(source)
        assert not shown & reached
        others = {name for name in reached if name.startswith("experiments/sddmm/methods/")}
        assert all(Path(name).stem == source.stem for name in others), others


def test_a_baseline_stands_on_its_kernel_and_its_headers_but_not_on_this_package() -> None:
    reached = names(METHODS / "isratnisa.py")
    assert {"experiments/sddmm/methods/isratnisa.cu", "experiments/sddmm/gpu_kernel.py"} <= reached
    assert "gemm_core/include/gemm_core/numeric.cuh" in reached
    assert "sddmm/plan.py" not in reached
    assert "sddmm/plan.py" not in names(METHODS / "torch_csr.py")


def test_generators_stand_on_their_own_code_alone() -> None:
    assert names(ROOT / "datasets" / "uniform.py") == {
        "datasets/uniform.py",
        "datasets/sampling.py",
    }


def test_what_measures_belongs_to_every_digest() -> None:
    for path in digest.MEASURING:
        assert path.is_file()
    whole = digest.measured_code(METHODS / "ours.py")
    assert whole != digest.measured_code(METHODS / "ours.py", measuring=digest.MEASURING[1:])
    assert whole != digest.measured_code(METHODS / "torch_csr.py")


def test_libraries_are_those_that_are_imported() -> None:
    assert "numba" in digest.libraries_of(METHODS / "isratnisa.py")
    assert set(digest.libraries_of(METHODS / "torch_dense.py")) == {"torch"}


PYTHON = """def f(x):
    return x + 1


class C:
    a = "a string"
"""
COMMENTED = '''"""What it is."""
def f(x):  # a comment
    """What f does."""
    return (x +
            1)
class C:
    """What C is."""

    a = "a string"
'''


@pytest.mark.parametrize(
    ("strip", "text", "same", "other"),
    [
        (digest.python_code, PYTHON, COMMENTED, PYTHON.replace("1", "2")),
        (digest.python_code, PYTHON, COMMENTED, PYTHON.replace("a string", "b string")),
        (
            digest.cuda_code,
            'int a = 1;\nchar* s = "// no comment";\n',
            '// why\nint  a = 1; /* two\nlines */\n\nchar* s = "// no comment";',
            'int a = 1;\nchar* s = "// a comment";\n',
        ),
    ],
)
def test_comments_docstrings_and_formatting_do_not_count(strip, text, same, other) -> None:
    assert strip(same) == strip(text) != strip(other)


def test_docstrings_alone_leave_a_body() -> None:
    assert digest.python_code('def f():\n    """Only this."""\n') == "def f():\n    pass"
