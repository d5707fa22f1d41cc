"""Pages of the repository as pages of the site.

A page's links are those that the repository has: a link out of docs/ to CONTRIBUTING.md leads to
the page of the site that includes that section, a link to a report to its file. Tables of results,
which are files that the laboratory writes, get a title. `repository_contents` of conf.py says which
pages get tables of contents: page -> caption -> pages.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\]\((?P<path>[^)#:\s]*CONTRIBUTING\.md)(?:#(?P<anchor>[\w-]+))?\)")
_GLOSSARY = "glossary"
_REPORT = re.compile(r"\]\((?P<path>[^):\s]*(?:report|kernel_times)\.md)\)")


def to_site(page: str, text: str) -> str:
    """The text of a page, `page` its name, with links to CONTRIBUTING.md as links to the site."""

    def link(match: re.Match[str]) -> str:
        anchor = match["anchor"]
        if anchor in (None, _GLOSSARY):
            target = "glossary.md" if anchor else "extend.md"
        else:
            target = f"extend.md#{anchor}"
        return f"]({posixpath.relpath(target, posixpath.dirname(page) or '.')})"

    return _REPORT.sub(r"](path:\g<path>)", _LINK.sub(link, text))


def _contents(captions: dict[str, list[str]]) -> str:
    """Hidden tables of contents, in Markdown."""
    return "".join(
        "\n```{toctree}\n:hidden:\n:glob:\n"
        + (f":caption: {caption}\n\n" if caption else "\n")
        + "\n".join([*pages, "```\n"])
        for caption, pages in captions.items()
    )


def _read(app: Any, page: str, source: list[str]) -> None:
    text = to_site(page, source[0])
    if page.startswith("results/") and not re.search(r"^# ", text, re.MULTILINE):
        text = f"# {page.removeprefix('results/')}\n\n{text}"
    source[0] = text + _contents(app.config.repository_contents.get(page, {}))


def setup(app: Any) -> dict[str, Any]:
    app.add_config_value("repository_contents", {}, "env")
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
