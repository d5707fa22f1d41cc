"""The documentation site: `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_extensions"), str(DOCS.parent)]

import sddmm  # noqa: E402

project = "sddmm"
author = "the authors of sddmm"
version = release = sddmm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "repository_pages",
    "plain_docstrings",
]
# These have a column per measurement: pages link to them as files.
exclude_patterns = ["_build", "results/**/report.md", "results/**/kernel_times.md"]
root_doc = "index"

# The tables of contents that the site appends to pages, which GitHub would show as code.
repository_contents = {
    "index": {
        "Start": ["start", "supported", "environment"],
        "Guides": [
            "guides/sparse_attention",
            "guides/graph_layers",
            "guides/training",
            "guides/plans",
            "guides/accuracy",
            "guides/several_gpus",
            "guides/explain",
            "guides/data",
        ],
        "Performance": ["performance", "results/README"],
        "How it works": [
            "how_it_works/call",
            "how_it_works/analysis",
            "how_it_works/planner",
            "how_it_works/kernels",
            "ladder",
        ],
        "Extend": ["extend", "libraries", "glossary"],
        "API": ["api/sddmm", "api/distributed", "api/testing", "api/gemm_core"],
    },
    "how_it_works/kernels": {"": ["kernels/*"]},
    "results/README": {
        "": ["*/summary", "*/*/summary", "*/*/published", "*/*/launch", "*/*/mini_batch*"]
    },
}

html_theme = "furo"
html_title = "sddmm"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_heading_anchors = 4

autodoc_typehints = "none"  # docstrings say shapes, dtypes and kinds, which types do not
autodoc_member_order = "bysource"
autosummary_generate = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# A link that leads nowhere is an error, as is every warning.
nitpicky = True
suppress_warnings: list[str] = []
