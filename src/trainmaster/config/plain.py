"""Any config as a plain tree: dicts, lists, text, numbers, booleans and None, and nothing else."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.describe import shorten
from trainmaster.config.paths import MAX_DEPTH, MAX_VALUES, Path, dotted, nest, wrong_key
from trainmaster.errors import ConfigError, Problem

MAX_DIGITS = 4300
"""Python reads and writes integers of this many digits unless it is told otherwise."""
_BIGGEST = 10**MAX_DIGITS
_SMALL = 2**63

OfConfig = Callable[[AnyConfig], dict[str, Any]]
"""Which of its values a typed config is to stand for."""

Scalar = None | bool | int | float | str


def plain(config: Any, replicates: bool = True) -> dict[str, Any]:
    """`config` as a plain tree with its dotted keys nested; every value that cannot be stored is a problem.

    Of a typed config, it is the identity, if `replicates` is False without the fields marked so; inside another config it says its class.

    >>> plain({"train.lr": 0.1, "sizes": (3, 4)})
    {'train': {'lr': 0.1}, 'sizes': [3, 4]}
    """
    problems: list[Problem] = []
    tree = _Walk(problems, identity_of if replicates else _group).value(config, ())
    if not problems and not isinstance(tree, dict):
        problems.append(Problem("", f"a config is a dict or a config object, not {type(config).__name__}"))
    if problems:
        raise ConfigError.of("the config", problems)
    assert isinstance(tree, dict)
    return tree


def plain_value(value: Any, path: Path, problems: list[Problem], of_config: OfConfig | None = None) -> Any:
    """`value`, which stands at `path`, as a plain tree; what cannot be is added to `problems`.

    A typed config is no plain value, unless `of_config` makes it one.
    """
    return _Walk(problems, of_config).value(value, path)


def identity_of(config: AnyConfig) -> dict[str, Any]:
    return config.identity()


def _group(config: AnyConfig) -> dict[str, Any]:
    return config.without_replicates()


class _Walk:
    """One walk over a config: how many values it has seen, and in which containers it is."""

    __slots__ = ("count", "inside", "of_config", "problems")

    def __init__(self, problems: list[Problem], of_config: OfConfig | None) -> None:
        self.problems, self.of_config = problems, of_config
        self.count = 0
        self.inside: set[int] = set()

    def value(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if kind is str or kind is int or kind is float:
            why = wrong_scalar(value)
            if why:
                self.problems.append(Problem(dotted(path), why))
            return value
        if value is None or kind is bool:
            return value
        if isinstance(value, Mapping | list | tuple | AnyConfig):
            return self._container(value, path)
        try:
            return self.value(plain_scalar(value), path)
        except TypeError:
            text = f"{kind.__module__}.{kind.__qualname__} cannot be stored in a config{_advice(value)}"
            self.problems.append(Problem(dotted(path), text))
            return None

    def _container(self, value: Any, path: Path) -> Any:
        why = ""
        if len(path) >= MAX_DEPTH:
            why = f"is nested more than {MAX_DEPTH} deep"
        elif id(value) in self.inside:
            why = "contains itself"
        elif not isinstance(value, AnyConfig) and self._seen(len(value)) > MAX_VALUES:
            why = f"a config has at most {MAX_VALUES:,} values"
        if why:
            if not self.problems or self.problems[-1].text != why:
                self.problems.append(Problem(dotted(path[:8]) + ("..." if len(path) > 8 else ""), why))
            return None
        if isinstance(value, AnyConfig) and self.of_config is None:
            text = "a typed config is no plain value; put its `to_dict()` here, or type the field by its class"
            self.problems.append(Problem(dotted(path), text))
            return None
        if isinstance(value, AnyConfig):
            inside = self.of_config(value)  # type: ignore[misc]
            return self._container({CLASS: type(value).__name__, **inside} if path else inside, path)
        self.inside.add(id(value))
        tree = (
            self._mapping(value, path)
            if isinstance(value, Mapping)
            else [self.value(each, (*path, number)) for number, each in enumerate(value)]
        )
        self.inside.discard(id(value))
        return tree

    def _seen(self, number: int) -> int:
        self.count += number
        return self.count

    def _mapping(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        has_dots = False
        for key, each in value.items():
            why = wrong_key(key)
            if why:
                self.problems.append(Problem(dotted((*path, shorten(key))), why))
            else:
                is_dotted = "." in key
                has_dots = has_dots or is_dotted
                if not _is_simple(each):
                    each = self.value(each, (*path, *key.split(".")) if is_dotted else (*path, key))
                tree[str.__str__(key)] = each
        if not has_dots:
            return tree

        def clash(at: Path) -> None:
            self.problems.append(Problem(dotted((*path, *at)), "is given twice: by a dotted key and by nesting"))

        return nest(tree, clash)


def _is_simple(value: Any) -> bool:
    """True for most scalars: plain, and with nothing to check."""
    kind = type(value)
    return value is None or kind is bool or kind is float or (kind is str and value.isascii()) or (kind is int and -_SMALL < value < _SMALL)


def plain_scalar(value: Any) -> Scalar:
    """Enums, paths and NumPy's scalars as the plain values they stand for; a `TypeError` for what stands for none."""
    if isinstance(value, Enum):
        return plain_scalar(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, PurePath):
        return value.as_posix()
    numpy = sys.modules.get("numpy")  # whoever made a NumPy scalar has imported NumPy
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
        if type(value) in (bool, int, float, str):
            return value  # type: ignore[no-any-return]
        raise TypeError
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError


def wrong_scalar(value: str | int | float) -> str:
    """Why a plain scalar cannot be stored; empty if it can."""
    if isinstance(value, str):
        if value.isascii():
            return ""
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{ascii(value)[:60]} is not valid Unicode: it has half of a surrogate pair"
    elif isinstance(value, int) and not -_BIGGEST < value < _BIGGEST:
        return f"an integer of more than {MAX_DIGITS} digits"
    return ""


def _advice(value: Any) -> str:
    if hasattr(value, "tolist"):
        return ": write `.tolist()`"
    if isinstance(value, set | frozenset):
        return ": a set has no order; write a sorted list"
    if callable(value):
        return ": write its import path as text"
    return ""


def same(one: Any, other: Any) -> bool:
    """True if two values mean the same: `1`, `1.0` and `True` differ, NaN equals itself, lists equal tuples, and dicts configs."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    try:
        equal = one == other
        return bool(equal.all() if hasattr(equal, "all") else equal)  # arrays say it element by element
    except Exception:  # values of somebody else's type that cannot be compared
        return one is other
