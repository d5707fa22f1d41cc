"""Problems: many matrices, sizes and dtypes that a study lists in a few lines.

    problems:
      causal_8k:
        {family: causal, source: causal, rows: 8192, cols: 8192,
         at: [64 float16, 128 float32, 64 bfloat16 8 heads]}

family: the class of patterns. source: how the matrix is made, with the fields of that source. at:
K, the dtype and, if more than one, the heads of each problem. An entry may name its own `methods`,
and of several ranks the `divisions`: each is a way, and how many replicas if more than one.

    divisions: [ring, rows, ring 2 replicas]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.bench.config import DTYPES
from experiments.bench.errors import ExperimentError
from experiments.bench.sources import SOURCES, Source
from experiments.sddmm.config import Config, part_of

_DIVISION = re.compile(r"(auto|ring|rows|slices|row_slices)(?: (\d+) replicas)?")
_AT = re.compile(rf"(\d+) ({'|'.join(DTYPES)})(?: (\d+) heads)?")


def problems_of(config: Config) -> list[tuple[str, Config]]:
    """The label and the configuration of each problem, as `only` and `part` select them."""
    if not config.problems:
        raise ExperimentError(
            "there are no problems; choose a study that lists some: +study=regret"
        )
    found = [
        (name, problem)
        for name, entry in config.problems.items()
        for problem in _problems(name, entry, config)
        if not config.only or name in config.only or problem.family in config.only
    ]
    if not found:
        raise ExperimentError(f"no problem is named {', '.join(config.only)}")
    first, step = part_of(config.part)
    return found[first::step]


def _problems(name: str, entry: Mapping[str, Any], config: Config) -> list[Config]:
    fields = dict(entry)
    try:
        family, at = str(fields.pop("family")), list(fields.pop("at"))
        config = replace(config, methods=list(fields.pop("methods", config.methods)))
        divided = [_divided(str(x), config) for x in fields.pop("divisions", ())] or [config]
        source: Source = SOURCES[fields.pop("source")](**fields)
        return [
            _at(str(text), replace(each, matrix=source, family=family))
            for text in at
            for each in divided
        ]
    except KeyError as error:
        raise ExperimentError(f"problem {name}: no {error}") from None
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"problem {name}: {error}") from None


def _divided(text: str, config: Config) -> Config:
    parts = _DIVISION.fullmatch(text)
    if parts is None:
        raise ValueError(f"divisions must be like 'ring' or 'ring 2 replicas', got {text!r}")
    return replace(config, way=parts[1], replicas=int(parts[2] or 1), problems={}, only=[])


def _at(text: str, config: Config) -> Config:
    parts = _AT.fullmatch(text)
    if parts is None:
        raise ValueError(f"at must be like '64 float16' or '64 float16 8 heads', got {text!r}")
    return replace(
        config, k=int(parts[1]), dtype=parts[2], heads=int(parts[3] or 1), problems={}, only=[]
    )
