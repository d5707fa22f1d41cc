"""The layers hold: who may import whom, and what is imported only when it is needed."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

OURS = {"gemm_core", "sddmm", "datasets", "experiments"}
LIBRARIES = {"numpy", "torch", "scipy", "cupy", "cupyx", "cuda", "numba", "hydra", "omegaconf"}
LIBRARIES |= {"matplotlib", "pandas", "psutil", "pyarrow", "rich"}

# package: (importable at the top of a module, importable inside a function only)
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "gemm_core": ({"gemm_core", "numpy", "torch"}, {"cupy", "cuda"}),
    "sddmm": (
        {"sddmm", "gemm_core", "numpy", "torch"},
        {"scipy", "cupy", "cupyx", "numba"},
    ),
    "datasets": ({"datasets", "numpy", "scipy"}, {"torch"}),
    "experiments": (OURS | LIBRARIES - {"matplotlib", "numba", "pandas", "pyarrow"}, LIBRARIES),
}
DISTRIBUTED = ROOT / "sddmm" / "distributed"
# Modules that are themselves imported inside functions only, for the sake of one library.
LAZY = {
    "sddmm/backends/cpu/addresses.py": "numba",
    "sddmm/backends/cpu/attention_kernel.py": "numba",
    "sddmm/backends/cpu/jit.py": "numba",
    "sddmm/backends/cpu/kernel.py": "numba",
    "sddmm/backends/cpu/product_kernel.py": "numba",
    "sddmm/backends/cpu/rows_kernel.py": "numba",
    "sddmm/backends/cpu/softmax_kernel.py": "numba",
    "sddmm/backends/cpu/vectors.py": "numba",
    # Which method is drawn how, and what is compared with what, need no library.
    **{
        str(path.relative_to(ROOT)): "matplotlib"
        for path in (ROOT / "experiments/pictures").glob("*.py")
        if path.stem not in ("__init__", "cases", "methods")
    },
}


@functools.cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, whether at the top level) of every import, type-checking blocks left out."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, top))
            found.extend((f"{node.module}.{alias.name}", top) for alias in node.names)
        inner = top and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(ast.parse(path.read_text()), True)
    return found


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_keep_to_the_layers(package: str) -> None:
    at_top, in_functions = ALLOWED[package]
    for path in modules(package):
        name = str(path.relative_to(ROOT))
        for module, top in imports(path):
            root = module.partition(".")[0]
            if root not in OURS | LIBRARIES or root == LAZY.get(name):
                continue
            allowed = at_top if top else at_top | in_functions
            assert root in allowed, f"{name} imports {module}"


@pytest.mark.parametrize("lazy", LAZY)
def test_modules_that_need_an_optional_library_are_imported_in_functions_only(lazy: str) -> None:
    module = lazy.removesuffix(".py").replace("/", ".")
    for package in ALLOWED:
        for path in modules(package):
            if LAZY.get(str(path.relative_to(ROOT))) != LAZY[lazy]:
                assert (module, True) not in imports(path), path


def test_no_module_of_ours_imports_the_laboratory_or_the_tests() -> None:
    for package in ("gemm_core", "sddmm", "datasets"):
        for path in modules(package):
            for module, _ in imports(path):
                assert module.partition(".")[0] not in ("experiments", "tests", "conf")


def test_the_runtime_knows_no_operator_and_sddmm_uses_nothing_of_the_ladder() -> None:
    for path in (*modules("gemm_core/runtime"), *modules("sddmm")):
        for module, _ in imports(path):
            name = f"{path} imports {module}"
            assert not f"{module}.".startswith("gemm_core.ladder."), name
            assert module != "gemm_core", name  # which imports the ladder


@pytest.mark.parametrize("is_distributed", [False, True])
def test_sddmm_has_at_most_nine_floors_and_no_circle(is_distributed: bool) -> None:
    """A module stands one floor above the highest of the sddmm modules that it names in imports.

    Imports within functions and for type checking alone do not count. Nor does it count that Python
    runs a package's __init__.py before a module of it, unless the import names the package.
    sddmm/distributed stands on top of all others, with floors of its own.
    """
    by_name = {
        module_name(path): path
        for path in modules("sddmm")
        if (DISTRIBUTED in path.parents) == is_distributed
    }
    chains: dict[str, tuple[str, ...]] = {}

    def chain(name: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The longest way down from a module."""
        assert name not in above, f"a circle: {' -> '.join((*above, name))}"
        if name not in chains:
            below = {module for module, top in imports(by_name[name]) if top} & by_name.keys()
            below.discard(name)
            ways = [chain(module, (*above, name)) for module in sorted(below)]
            chains[name] = (name, *max(ways, key=len, default=()))
        return chains[name]

    longest = max((chain(name) for name in by_name), key=len)
    assert len(longest) <= 9, " -> ".join(longest)


def test_the_other_packages_import_sddmm_distributed_in_functions_only() -> None:
    for package in ALLOWED:
        for path in modules(package):
            if (
                DISTRIBUTED not in path.parents
                and ROOT / "experiments/distributed" not in path.parents
            ):
                top = [module for module, is_top in imports(path) if is_top]
                assert not any(f"{m}.".startswith("sddmm.distributed.") for m in top), path
                assert not any(m.startswith("torch.distributed") for m in top), path


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_python_file_is_longer_than_400_lines() -> None:
    for package in (*ALLOWED, "tests"):
        for path in modules(package):
            assert len(path.read_text().splitlines()) <= 400, path


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_test_imports_a_private_name_or_uses_one_without_a_reason_beside_it() -> None:
    """The reason is a comment on the same line or on the one before."""
    for path in modules("tests"):
        lines = path.read_text().splitlines()
        for name, line in private_uses(path):
            reasoned = any("#" in text for text in lines[max(0, line - 2) : line])
            assert reasoned, f"{path.relative_to(ROOT)}:{line} uses {name}"
        for module, _ in imports(path):
            if module.partition(".")[0] in OURS | {"tests"}:
                assert not any(map(private, module.split("."))), f"{path} imports {module}"


def private_uses(path: Path) -> Iterator[tuple[str, int]]:
    """(name, line) of each private name of ours: module._name and "module._name" in a patch."""
    tree = ast.parse(path.read_text())
    names = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] in OURS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            base: ast.expr = node
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id in names:
                yield ast.unparse(node), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "patch")):
            for argument in node.args[:2]:
                text = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(text, str) and any(map(private, text.split("."))):
                    yield text, argument.lineno


BARE = """
import sys, time
class Absent:
    names = {"numba", "cupy", "cupyx", "cuda", "matplotlib", "rich", "scipy", "hydra", "omegaconf"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def python(code: str) -> str:
    """What a new Python prints; it keeps bytecode, as an installed package has it."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def test_sddmm_works_with_every_optional_library_absent() -> None:
    blocked = (
        BARE
        + """
import torch
import sddmm
import sddmm.backends.cpu.backend
sddmm.backends.cpu.backend.find_spec = lambda name: None
pattern = sddmm.SparsePattern.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), (2, 2))
a = torch.eye(2, requires_grad=True)
values = sddmm.sddmm(pattern, a, torch.tensor([[1., 2.], [3., 4.]]))
values.sum().backward()
print(values.tolist(), a.grad.tolist(), sddmm.plan(pattern, k=2, dtype=a.dtype).backend)
"""
    )
    assert python(blocked).strip() == "[2.0, 3.0] [[2.0, 4.0], [1.0, 3.0]] torch_csr"


def test_importing_sddmm_imports_neither_an_optional_library_nor_its_testing_tools() -> None:
    """Beyond what torch itself takes where it is installed, such as NVIDIA's cuda package; and not
    many modules, of which each takes about a millisecond."""
    code = "import torch, sys; mine = set(sys.modules); import sddmm; "
    code += "new = set(sys.modules) - mine; print(len(new))\n"
    code += "print(sorted({m.partition('.')[0] for m in new}))\n"
    code += "print('sddmm.testing' in sys.modules, sddmm.testing.assert_close.__name__, "
    code += "hasattr(sddmm, 'nothing'))"
    count, libraries, tools = python(code).splitlines()
    assert int(count) < 200
    loaded = set(ast.literal_eval(libraries))
    assert not loaded & {"numba", "cupy", "cuda", "matplotlib", "rich", "scipy", "hydra"}
    assert tools.split() == ["False", "assert_close", "False"]


def test_the_laboratory_without_hydra_says_which_extra_to_install() -> None:
    code = BARE + "import runpy; runpy.run_module('experiments', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "python -m experiments needs hydra, which " in line
    assert "pip install -e '.[laboratory]'" in line
