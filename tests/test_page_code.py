"""Every Python block of the README and of the pages runs, and prints what its page says."""

from __future__ import annotations

import pytest

from experiments.pages import PAGES
from gemm_core.emulation.kernel import missing_compiler
from tests.conftest import ROOT
from tests.page_code import blocks, comparable, run, shown, with_outputs


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


WITH_CODE = [
    name for name in PAGES if "```python\n" in text_of(name) or "<!-- run:" in text_of(name)
]


def check(name: str, gpu: bool) -> None:
    text = text_of(name)
    found = blocks(text)
    assert len([block for block in found if not block.is_hidden]) == text.count("```python\n")
    for block, printed in run(name, found, gpu).items():
        if block.output is not None and not gpu:
            assert comparable(printed) == comparable(shown(text, block)), f"{name}:{block.line}"


@pytest.mark.skipif(missing_compiler() is not None, reason="needs g++")
@pytest.mark.parametrize("name", WITH_CODE)
def test_the_programs_of_a_page_run(name: str) -> None:
    check(name, gpu=False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITH_CODE)
def test_the_programs_of_a_page_run_on_a_gpu(name: str) -> None:
    check(name, gpu=True)


PAGE = """# A page
<!-- run: smaller: 1000 -> 3 -->
```python
n = 1000
```
<!-- run: hidden
assert n == 3
-->
<!-- run: prints -->
```python
print(n + 1)
```

```text
4
```
"""


def test_a_program_that_fails_or_prints_otherwise_is_found_and_its_output_mended() -> None:
    (*_, last) = blocks(PAGE)
    assert run("page", blocks(PAGE), gpu=False)[last] == shown(PAGE, last) == "4\n"
    drifted = PAGE.replace("\n4\n", "\n5\n")
    assert with_outputs("page", drifted) == PAGE
    with pytest.raises(AssertionError):
        run("page", blocks(PAGE.replace("n == 3", "n == 4")), gpu=False)


def test_a_program_is_complete_without_what_is_hidden() -> None:
    hidden = PAGE.replace("assert n == 3", "assert n == 3\nm = n").replace("print(n", "print(m")
    with pytest.raises(NameError, match="'m' is not defined"):
        run("page", blocks(hidden), gpu=False)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (PAGE.replace("smaller: 1000", "smaller: 999"), "line 3: the block has no '999'"),
        (PAGE.replace("prints", "printing"), "line 9: unknown note 'printing'"),
        (PAGE.replace("```text", "```"), "line 10: no text block follows"),
    ],
)
def test_a_comment_that_means_nothing_is_refused(page: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run("page", blocks(page), gpu=False)
