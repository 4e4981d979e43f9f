"""Conditions on configs: which values, at which dotted keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.config.plain import same
from trainmaster.errors import StoreError

Condition = Mapping[str, Any]
"""For each dotted key a value, a list of values, a range `(low, high)` (both included, None for no end), or a function that says yes or no.

A list as a value is written inside a list.
"""

Tree = dict[str, Any]
"""A config as it is stored: plain values, NaN and the infinities as `{".float": "nan"}`."""


def is_met(cond: Condition | None, config: Tree) -> bool:
    """Whether a stored config is as `cond` wants it. A key that it does not have meets nothing.

    >>> is_met({"lr": (None, 0.1), "arch": ["ResNet18", "ResNet50"]}, {"lr": 0.01, "arch": "ResNet18"})
    True
    """
    return matcher(cond)(config)


def matcher(cond: Condition | None) -> Callable[[Tree], bool]:
    """`is_met` for many configs: what can be known of `cond` alone is found out once."""
    tests = [(key.split("."), _test(wanted)) for key, wanted in (cond or {}).items()]

    def is_met(config: Tree) -> bool:
        for path, test in tests:
            node: Any = config
            for part in path:
                if type(node) is not dict or part not in node:
                    return False
                node = node[part]
            if not test(as_given(node)):
                return False
        return True

    return is_met


def _test(wanted: Any) -> Callable[[Any], bool]:
    """Whether one value is as it is wanted."""
    if callable(wanted):
        return lambda value: bool(wanted(value))
    if isinstance(wanted, list):
        return lambda value: any(same(each, value) for each in wanted)
    if isinstance(wanted, tuple):
        return _within(wanted)
    kind = type(wanted)
    if kind in (str, int, bool):  # most of them
        return lambda value: type(value) is kind and value == wanted
    return lambda value: same(wanted, value)


def _within(ends: tuple[Any, ...]) -> Callable[[Any], bool]:
    if len(ends) != 2:
        raise StoreError(f"{ends!r} is no condition", hint="a tuple is a range: (low, high), None for no end; a list gives values")
    low, high = ends

    def is_within(value: Any) -> bool:
        return type(value) in (int, float) and (low is None or value >= low) and (high is None or value <= high)

    return is_within


def as_given(tree: Any) -> Any:
    """A stored value as it was given: NaN and the infinities are numbers again."""
    kind = type(tree)
    if kind is list:
        return [as_given(each) for each in tree]
    if kind is not dict:
        return tree
    if tree.keys() == {".float"}:
        return float(tree[".float"])
    return {key: as_given(value) for key, value in tree.items()}
