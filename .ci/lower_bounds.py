"""Prints the lower bounds of pyproject.toml as constraints for pip: `name>=1.2` as `name==1.2`."""

import re
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, whose venv brings a pip that has it
    from pip._vendor import tomli as tomllib

project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"].values()
for requirement in (*project["dependencies"], *(one for extra in extras for one in extra)):
    bound = re.fullmatch(r"([\w-]+)(\[\w+\])?>=([\d.]+)(,.*)?", requirement)
    if bound is None:
        raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound")
    print(f"{bound[1]}=={bound[3]}")
