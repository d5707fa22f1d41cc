"""Docstrings of this repository as reStructuredText.

They are plain paragraphs: `name` is code, and a paragraph that opens with "a, b: " lists arguments,
each with its continuation lines. Indented paragraphs are programs.
"""

from __future__ import annotations

import re
from typing import Any

import sddmm

_ENTRY = re.compile(r"^(?P<names>[a-z]\w*(?:, [a-z]\w*)*|S(?:, [a-z]\w*)*): +(?P<text>.*)$")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def as_rst(lines: list[str]) -> list[str]:
    """The lines of one docstring as reStructuredText."""
    paragraphs = [p.split("\n") for p in re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))]
    text: list[str] = []
    for paragraph in paragraphs:
        if all(line.startswith("    ") for line in paragraph):
            text += [".. code-block:: python", "", *paragraph, ""]
        elif _ENTRY.match(paragraph[0]):
            text += [*_entries(paragraph), ""]
        else:
            text += [_plain(paragraph), ""]
    return text


def _entries(paragraph: list[str]) -> list[str]:
    """A list of arguments: an entry begins in the first column, and goes on until the next one."""
    entries: list[tuple[str, list[str]]] = []
    for line in paragraph:
        entry = _ENTRY.match(line)
        if entry:
            names = ", ".join(f"**{name}**" for name in entry["names"].split(", "))
            entries.append((names, [entry["text"]]))
        else:
            entries[-1][1].append(line)
    return [f"* {names}: {_plain(lines)}" for names, lines in entries]


def _plain(lines: list[str]) -> str:
    """Lines as one, in which nothing but code is marked up; code may go from line to line."""
    parts = _CODE.split(" ".join(line.strip() for line in lines))
    words = [re.sub(r"([*|_\\])", r"\\\1", part) for part in parts[::2]]
    codes = [rf"\ {_code(code)}\ " for code in parts[1::2]]  # also within a word
    return "".join(w + c for w, c in zip(words, [*codes, ""], strict=True))


def _code(code: str) -> str:
    """A public name as a link, all else as it is."""
    return f":py:obj:`~sddmm.{code}`" if code in sddmm.__all__ else f"``{code}``"


def _process(app: Any, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
