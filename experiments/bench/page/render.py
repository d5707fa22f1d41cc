"""Renders the page: the template with its style and its script inside."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from experiments.bench.methods import introduction
from experiments.bench.page import facts
from experiments.bench.page.facts import Environment
from experiments.bench.page.tables import Table, text_of
from experiments.bench.record import Record

if TYPE_CHECKING:
    from experiments.bench.objective import AnyObjective
    from experiments.pictures.picture import Picture

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """A picture of the page: its title, what it shows in words, and the SVG.

    svg is empty where there is nothing to draw, and the caption then is the reason.
    """

    title: str
    caption: str
    svg: str

    @classmethod
    def of(cls, picture: Picture) -> Figure:
        return cls(picture.title, picture.caption, picture.svg() if picture.figure else "")

    @property
    def source(self) -> str:
        """As an image of its own, so that neither its ids nor a script meet those of the page."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


def render(
    objective: AnyObjective,
    records: Sequence[Record],
    figures: Sequence[Figure] = (),
    complaints: Sequence[str] = (),
    command: str = "",
) -> str:
    """The page of an objective's records.

    complaints: lines of the files that are no records. command: what writes this page again.
    """
    environments = facts.environments(records)
    return page(
        title=objective.title or type(objective).__name__,
        overview=facts.overview(objective, records),
        introduction=introduction((r.name for r in records), objective.reimplemented),
        tables=objective.tables(records) if records else [],
        figures=figures,
        problems=[facts.without_time(objective, records), facts.noisy(objective, records)],
        environments=[(e, again(e, objective.commands(e.records))) for e in environments],
        complaints=complaints,
        command=command,
    )


def again(environment: Environment, commands: Sequence[str]) -> list[str]:
    """The lines of a shell that bring the code of an environment and run these commands."""
    if environment.is_dirty:
        checkout = [f"# measured with changes that are not in commit {environment.commit}"]
    elif environment.commit:
        checkout = [f"git checkout {shlex.quote(environment.commit)}"]
    else:
        checkout = ["# the commit is not known"]
    return [*checkout, "make setup", *commands]


def page(
    *,
    title: str,
    overview: Mapping[str, str],
    tables: Sequence[Table],
    environments: Sequence[tuple[Environment, Sequence[str]]],
    introduction: str = "",
    figures: Sequence[Figure] = (),
    problems: Sequence[Table] = (),
    complaints: Sequence[str] = (),
    command: str = "",
    data: str = "report.csv",
) -> str:
    """The page of these parts. environments: each with the commands that measure there again.

    data: the file beside the page that holds its figures.
    """
    style, script = (_text(name) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template().render(
        title=title, overview=overview, tables=tables, environments=environments,
        introduction=introduction, figures=figures, problems=problems, complaints=complaints,
        command=command, data=data, style=style, script=script, script_digest=f"sha256-{digest}",
        text_of=text_of, prose=_prose,
        breakable=_breakable, slug=_slug,
    )  # fmt: skip


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(_FOLDER)
    options = {"trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, **options
    )
    return environment.get_template("page.html")


def _prose(text: str) -> Markup:
    """A sentence, in which `x` is code."""
    parts = enumerate(text.split("`"))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in parts
    )


def _breakable(name: str) -> Markup:
    """A name that may be broken after an underscore."""
    return Markup("_<wbr>").join(name.split("_"))


def _slug(title: str) -> str:
    """A title as an anchor."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
