"""Converts any config to a plain tree: nested dicts and lists of text, numbers, booleans and None."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from trainmaster.config.any_config import CLASS, AnyConfig
from trainmaster.config.paths import MAX_DEPTH, MAX_VALUES, Path, dotted, key_problem, nest
from trainmaster.config.value_table import short_repr
from trainmaster.errors import ConfigError, Problem

MAX_DIGITS = 4300
"""Python's default limit for converting integers to and from text."""
_BIGGEST = 10**MAX_DIGITS
_SMALL = 2**63

Scalar = None | bool | int | float | str


def to_plain(config: Any, replicates: bool = True) -> dict[str, Any]:
    """Convert `config` to nested plain values. Dotted keys become nested dicts.

    All values that cannot be stored are reported in one error.

    For a typed config, the result is its identity. `replicates=False` leaves out the fields marked `Replicate`. A typed
    config inside a free-form config also gets the key `class`.

    >>> to_plain({"train.lr": 0.1, "sizes": (3, 4)})
    {'train': {'lr': 0.1}, 'sizes': [3, 4]}
    """
    problems: list[Problem] = []
    tree = _Walk(problems, allows_typed=True, replicates=replicates).value(config, ())
    if not problems and not isinstance(tree, dict):
        problems.append(Problem("", f"a config must be a dict or a config object, not {type(config).__name__}"))
    if problems:
        raise ConfigError.of("the config", problems)
    assert isinstance(tree, dict)
    return tree


def value_to_plain(value: Any, path: Path, problems: list[Problem], allows_typed: bool = False) -> Any:
    """Convert `value`, which is at `path` in the config, to plain values.

    Values that cannot be stored are added to `problems`.

    With `allows_typed`, a typed config is converted to its identity. Without it, a typed config cannot be stored.
    """
    return _Walk(problems, allows_typed).value(value, path)


class _Walk:
    """Traverses a config once, and counts its values."""

    __slots__ = ("allows_typed", "count", "problems", "replicates")

    def __init__(self, problems: list[Problem], allows_typed: bool, replicates: bool = True) -> None:
        self.problems, self.allows_typed, self.replicates = problems, allows_typed, replicates
        self.count = 0

    def value(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if kind is str or kind is int or kind is float:
            why = scalar_problem(value)
            if why:
                self.problems.append(Problem(dotted(path), why))
            return value
        if value is None or kind is bool:
            return value
        if isinstance(value, Mapping | list | tuple | AnyConfig):
            return self._container(value, path)
        try:
            return self.value(scalar_to_plain(value), path)
        except TypeError:
            text = f"{kind.__module__}.{kind.__qualname__} cannot be stored in a config{_advice(value)}"
            self.problems.append(Problem(dotted(path), text))
            return None

    def _container(self, value: Any, path: Path) -> Any:
        if isinstance(value, AnyConfig):
            if not self.allows_typed:
                text = "a typed config is not a plain value; put its `to_dict()` here, or annotate the field with its class"
                self.problems.append(Problem(dotted(path), text))
                return None
            inside = value.identity(self.replicates)
            value = {CLASS: type(value).__name__, **inside} if path else inside
        self.count += len(value)
        if len(path) >= MAX_DEPTH:
            return self._refuse(f"is nested more than {MAX_DEPTH} deep, or contains itself", path)
        if self.count > MAX_VALUES:
            return self._refuse(f"a config has at most {MAX_VALUES:,} values", path)
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        return [self.value(each, (*path, number)) for number, each in enumerate(value)]

    def _refuse(self, why: str, path: Path) -> None:
        if not self.problems or self.problems[-1].text != why:  # report the same problem only once for sibling values
            self.problems.append(Problem(dotted(path[:8]) + ("..." if len(path) > 8 else ""), why))

    def _mapping(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        has_dots = False
        for key, each in value.items():
            why = key_problem(key)
            if why:
                self.problems.append(Problem(dotted((*path, short_repr(key))), why))
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
    """Return whether a value is a scalar that needs no further checks before it is stored. Most scalars need none."""
    kind = type(value)
    return value is None or kind is bool or kind is float or (kind is str and value.isascii()) or (kind is int and -_SMALL < value < _SMALL)


def scalar_to_plain(value: Any) -> Scalar:
    """Convert an enum member, path or NumPy scalar to a plain value.

    Plain scalars are returned unchanged. All other objects raise a `TypeError`.
    """
    if isinstance(value, Enum):
        return scalar_to_plain(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, PurePath):
        return value.as_posix()
    numpy = sys.modules.get("numpy")  # a NumPy scalar can only exist if NumPy is imported
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


def scalar_problem(value: str | int | float) -> str:
    """Return why a plain scalar cannot be stored, or an empty string if it can."""
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


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values have the same meaning.

    `1`, `1.0` and `True` differ from each other. NaN equals NaN. A list equals a tuple with the same elements, and
    mappings of different types with the same items are equal too.
    """
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    try:
        equal = one == other
        return bool(equal.all() if hasattr(equal, "all") else equal)  # arrays are compared element by element
    except Exception:  # objects from other libraries may not support comparison
        return one is other
