"""Builds the distribution. pyproject.toml says all but the page that an index of packages shows.

That page is the README without what works in the repository alone: links and images with relative
addresses, and comments. The repository has no public address that they could be made absolute by.
"""

import re
from pathlib import Path

from setuptools import setup

_RELATIVE = r"\((?!https?://|mailto:)[^()\s]*\)"
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def index_page(readme: str) -> str:
    """The README for an index of packages; code blocks stay as they are."""
    return "".join(
        part if part.startswith("```") else _without_relative_links(part)
        for part in _FENCE.split(readme)
    )


def _without_relative_links(text: str) -> str:
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r"<picture>.*?</picture>\n*", "", text, flags=re.DOTALL)
    text = re.sub(r"<img\s[^>]*src=[\"'](?!https?://)[^>]*>\n*", "", text)
    text = re.sub(r"!\[[^\]]*\]" + _RELATIVE + r"\n*", "", text)
    return re.sub(r"\[([^\]]*)\]" + _RELATIVE, r"\1", text)


if __name__ == "__main__":
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(
        long_description=index_page(readme),
        long_description_content_type="text/markdown",
    )
