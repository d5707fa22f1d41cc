"""Keys of a configuration: what each one means, which values are valid, and an example.

A dataclass describes its keys where it declares them; checks, --help and tab completion read that.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from omegaconf import MISSING


@dataclass(frozen=True)
class Rule:
    """The values that a key may have. names: all of them, where they are a few words."""

    text: str
    holds: Callable[[Any], bool]
    names: tuple[str, ...] = ()


def one_of(*names: str) -> Rule:
    return Rule(f"one of {', '.join(names)}", lambda value: value in names, names)


def at_least(least: float) -> Rule:
    return Rule(f">= {least}", lambda value: value >= least)


@dataclass(frozen=True)
class Description:
    """What --help says of a key. example: arguments of the command line that set the key."""

    text: str
    example: str
    rule: Rule | None = None


def key(default: Any, text: str, example: str, rule: Rule | None = None) -> Any:
    """A field of a dataclass, with its description."""
    metadata = {"description": Description(text, example, rule)}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Key:
    """A key as a person sets it. path: with the keys above it, such as timing.seconds."""

    path: str
    kind: type
    default: Any
    description: Description

    @property
    def type_name(self) -> str:
        """The type in a person's words."""
        return _type_name(self.kind)

    @property
    def default_text(self) -> str:
        """The default as the command line takes it; empty where there is none."""
        if self.default is None:
            return "null"
        if self.default in ("", [], {}, MISSING):
            return "" if self.default == MISSING else "none"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, list):
            return ",".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def values(self) -> tuple[str, ...]:
        """The valid values, where they are a few words."""
        if self.kind is bool:
            return ("true", "false")
        return self.description.rule.names if self.description.rule else ()


def keys_of(schema: type) -> list[Key]:
    """The keys of a configuration's dataclass and of the dataclasses in it, in their order."""
    return _keys_of(schema, {f.name: _default(f) for f in fields(schema)}, "")


def _keys_of(schema: type, defaults: Mapping[str, Any], prefix: str) -> list[Key]:
    hints, keys = get_type_hints(schema), []
    for f in fields(schema):
        path, default = f"{prefix}{f.name}", defaults[f.name]
        if is_dataclass(default):
            keys += _keys_of(type(default), vars(default), f"{path}.")
        else:
            keys.append(Key(path, hints[f.name], default, f.metadata["description"]))
    return keys


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def require(condition: bool, key: str, rule: str, value: Any) -> None:
    """Raise ValueError with the rule that the value of a key breaks."""
    if not condition:
        raise ValueError(f"{key} must be {rule}, got {value}")


def check(config: Any, prefix: str = "") -> None:
    """Raise ValueError for the first value that breaks the rule of its key; null breaks none."""
    for f in fields(config):
        value = getattr(config, f.name)
        rule = None if is_dataclass(value) else f.metadata["description"].rule
        if rule is not None and value is not None and value != MISSING:
            require(rule.holds(value), f"{prefix}{f.name}", rule.text, value)


def refuse_absurd(config: Any, prefix: str = "") -> None:
    """Raise ValueError for a number that no part of a run can take, by its key."""
    for f in fields(config):
        key, value = f"{prefix}{f.name}", getattr(config, f.name)
        if is_dataclass(value):
            refuse_absurd(value, f"{key}.")
        elif isinstance(value, float):
            require(math.isfinite(value), key, "finite", value)
        elif isinstance(value, int):
            require(abs(value) < 1 << 63, key, "below 2^63", value)


def list_keys(schema: type) -> tuple[str, ...]:
    """The keys whose value is a list of names, which the command line takes as A,B or [A,B]."""
    hints = get_type_hints(schema)
    return tuple(f.name for f in fields(schema) if get_origin(hints[f.name]) is list)


def _type_name(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(kind))
    names = {
        int: "whole number", float: "number", bool: "true or false", str: "text",
        type(None): "null", Any: "group", list: "names", dict: "mapping",
    }  # fmt: skip
    return names[get_origin(kind) or kind]
