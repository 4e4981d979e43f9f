"""The differences between two configs, value by value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster.config.to_plain import is_same

Side = tuple[type, Any]
Difference = tuple[str, Side, Side]


class Missing:
    """The type of a value that is missing in one of the two configs."""


def diff(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """Return the differences between two flattened configs. Values of different types always differ.

    >>> diff({"lr": 1}, {"lr": 1.0})
    [('lr', (<class 'int'>, 1), (<class 'float'>, 1.0))]
    """
    keys = [*one, *(key for key in other if key not in one)]
    return [
        (key, _side(one, key), _side(other, key)) for key in keys if key not in one or key not in other or not is_same(one[key], other[key])
    ]


def diff_str(differences: Iterable[Difference]) -> list[str]:
    """Format each difference as `path:(type)old->(type)new`."""
    return [f"{path}:({old[0].__name__}){old[1]}->({new[0].__name__}){new[1]}" for path, old, new in differences]


def _side(values: Mapping[str, Any], key: str) -> Side:
    return (type(values[key]), values[key]) if key in values else (Missing, None)
