"""A digest covers the code that a measurement depends on, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.bench import digest
from experiments.bench.digest import ROOT, Code
from experiments.bench.objective import AnyObjective
from experiments.gemm.methods import ALL
from experiments.gemm.objective import GEMM
from experiments.sddmm.methods import METHODS
from experiments.sddmm.objective import SDDMM

SDDMM_METHODS = METHODS.select([])


def names(code: Code) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in code.files()}


def code_of(method: str) -> Code:
    return SDDMM.code(SDDMM_METHODS[method])


def test_ours_depends_on_the_kernels_of_this_package_and_on_what_launches_them() -> None:
    reached = names(code_of("ours"))
    for kernel in (ROOT / "sddmm" / "backends" / "cuda" / "kernels").rglob("*.cu"):
        assert str(kernel.relative_to(ROOT)) in reached
    assert {
        "sddmm/plan.py",
        "sddmm/backends/cuda/backend.py",
        "gemm_core/runtime/launch.py",
    } <= reached
    assert "gemm_core/include/gemm_core/mainloop_mma.cuh" in reached


@pytest.mark.parametrize("method", SDDMM_METHODS)
def test_no_method_depends_on_the_bench_on_another_method_or_on_a_stand_in_for_a_gpu(
    method: str,
) -> None:
    reached = names(code_of(method))
    assert not any("emulation" in name or "experiments/bench/" in name for name in reached)
    methods = {name for name in reached if name.startswith("experiments/sddmm/methods/")}
    assert {Path(name).stem for name in methods} == {method}
    assert not any("test" in Path(name).name for name in reached)


def test_a_baseline_depends_on_its_kernel_and_its_headers_but_not_on_this_package() -> None:
    reached = names(code_of("isratnisa"))
    assert {"experiments/sddmm/methods/isratnisa.cu", "experiments/sddmm/gpu_kernel.py"} <= reached
    assert "gemm_core/include/gemm_core/numeric.cuh" in reached
    assert "sddmm/plan.py" not in reached
    assert "sddmm/plan.py" not in names(code_of("torch_csr"))


@pytest.mark.parametrize("name", ["mma_128x256x64_stage3", "hgemm_naive"])
def test_a_gemm_variant_depends_on_its_kernel_and_its_launch_not_on_other_variants(
    name: str,
) -> None:
    variant = ALL[name]
    reached = names(GEMM.code(variant))
    assert variant.spec is not None
    kernels = {Path(path).name for path in reached if path.endswith(".cu")}
    assert kernels - {"wmma_probe.cu"} == {variant.spec.source}
    assert {
        "experiments/gemm/methods.py",
        "gemm_core/ladder/api.py",
        "gemm_core/ladder/spec.py",
        "gemm_core/runtime/compile.py",
        "gemm_core/runtime/launch.py",
    } <= reached
    assert not {"gemm_core/ladder/registry.py", "gemm_core/ladder/choose.py"} & reached


def test_generators_depend_on_their_own_code_alone() -> None:
    assert names(Code((ROOT / "datasets" / "uniform.py",))) == {
        "datasets/uniform.py",
        "datasets/sampling.py",
    }


@pytest.mark.parametrize("objective", [SDDMM, GEMM])
def test_what_measures_belongs_to_every_digest(objective: AnyObjective) -> None:
    methods = {SDDMM: SDDMM_METHODS, GEMM: ALL}[objective]
    code = objective.code(next(iter(methods.values())))
    for module in ("timing.py", "measuring.py", "verify.py"):
        assert ROOT / "experiments" / "bench" / module in code.measuring
    own = {path.name for path in code.measuring if path.parent.name != "bench"}
    assert own >= {"case.py", "verify.py"}
    for path in code.measuring:
        without = tuple(other for other in code.measuring if other != path)
        assert Code(code.sources, without, (*code.unmeasured, path)).digest() != code.digest()


def test_each_method_has_a_digest_of_its_own() -> None:
    digests = {code_of(method).digest() for method in SDDMM_METHODS}
    assert len(digests) == len(SDDMM_METHODS)


def test_libraries_are_those_that_are_imported() -> None:
    assert "numba" in code_of("isratnisa").libraries()
    assert set(code_of("torch_dense").libraries()) == {"torch"}


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
