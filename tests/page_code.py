"""The Python programs of the pages: `tests/test_page_code.py` runs each page from top to bottom.

A page's Python blocks are one program. Comments, which no reader sees, say how to run it:

    <!-- run: smaller: 100_000 -> 1_000 -->   in the next block, for the test
    <!-- run: on the emulated GPU -->         the next block
    <!-- run: on a GPU -->                    the next block, which only `make test-gpu` runs
    <!-- run: prints -->                      the text block after the next block is its output
    <!-- run: hidden
    assert values.shape == (nnz,)             code of the test alone, which checks what readers see
    -->

What hidden code defines, only hidden code has: a reader's program is complete without it.

Without a GPU, `device = "cuda"` is the CPU. `python -m tests.page_code PAGE ...` writes into pages
what their programs print.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sddmm.testing import emulated_gpu

ROOT = Path(__file__).parent.parent

_PIECE = re.compile(
    r"<!-- run: (?P<note>(?!hidden)[^\n]*?) -->\n"
    r"|<!-- run: hidden\n(?P<hidden>.*?)-->\n"
    r"|^```python\n(?P<code>.*?)^```\n(?P<output>\s*```text\n.*?^```\n)?",
    re.DOTALL | re.MULTILINE,
)
_NOTES = ("on the emulated GPU", "on a GPU", "prints")


@dataclass(frozen=True)
class Block:
    """A program of a page and its first line there; output: where the printed text stands."""

    line: int
    code: str
    notes: tuple[str, ...] = ()
    output: tuple[int, int] | None = None
    is_hidden: bool = False


def blocks(text: str) -> list[Block]:
    """The programs of a page, hidden ones too, in order. Raises ValueError for an unknown note."""
    found: list[Block] = []
    notes: list[str] = []
    for match in _PIECE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["note"]:
            if match["note"] not in _NOTES and not match["note"].startswith("smaller: "):
                raise ValueError(f"line {line}: unknown note {match['note']!r}")
            notes.append(match["note"])
        elif match["hidden"]:
            found.append(Block(line, match["hidden"], is_hidden=True))
        else:
            output = match.span("output") if "prints" in notes else None
            if output == (-1, -1):
                raise ValueError(f"line {line}: no text block follows with what it prints")
            found.append(Block(line, match["code"], tuple(notes), output))
            notes = []
    return found


def run(page: str, blocks: list[Block], gpu: bool) -> dict[Block, str]:
    """Run the programs of a page, on a GPU or on the CPU; what each block printed.

    A traceback names the page and its line.
    """
    namespace: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    printed: dict[Block, str] = {}
    for block in blocks:
        if "on a GPU" in block.notes and not gpu:
            compile(block.code, page, "exec")
            continue
        code = _adapted(block, gpu)
        program = compile("\n" * block.line + code, page, "exec")
        text = io.StringIO()
        with _where(block, gpu), warnings.catch_warnings(), contextlib.redirect_stdout(text):
            warnings.simplefilter("ignore")  # torch's sparse CSR tensors are in beta
            if block.is_hidden:
                hidden.update(namespace)
                exec(program, hidden)
            else:
                exec(program, namespace)
        printed[block] = text.getvalue()
    return printed


def _adapted(block: Block, gpu: bool) -> str:
    """The block's code with the test's sizes, and with the CPU as its device without a GPU."""
    code = block.code
    for note in block.notes:
        if note.startswith("smaller: "):
            old, _, new = note.removeprefix("smaller: ").partition(" -> ")
            if old not in code:
                raise ValueError(f"line {block.line}: the block has no {old!r}")
            code = code.replace(old, new)
    return code if gpu else code.replace('"cuda"', '"cpu"')


@contextlib.contextmanager
def _where(block: Block, gpu: bool) -> Iterator[None]:
    if "on the emulated GPU" in block.notes and not gpu:
        with emulated_gpu():
            yield
    else:
        yield


def comparable(output: str) -> str:
    """Printed text without what differs from run to run: measured times, and the device's name."""
    text = re.sub(r"prepared in [\d.e+]+ ms", "prepared in # ms", output)
    return re.sub(r"\bon (cpu|cuda:\d+)$", "on #", text, flags=re.MULTILINE)


def shown(text: str, block: Block) -> str:
    """The output of a block as its page has it."""
    assert block.output is not None
    return text[slice(*block.output)].strip().removeprefix("```text\n").removesuffix("```")


def with_outputs(page: str, text: str) -> str:
    """The page with what its programs print now."""
    found = blocks(text)
    printed = run(page, found, gpu=False)
    for block in reversed(found):
        if block.output is not None and comparable(shown(text, block)) != comparable(
            printed[block]
        ):
            begin, end = block.output
            text = f"{text[:begin]}\n```text\n{printed[block]}```\n{text[end:]}"
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = ROOT / name
        path.write_text(with_outputs(name, path.read_text(encoding="utf-8")), encoding="utf-8")
