"""Conditions on configs: which values, at which dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.config.plain import same
from trainmaster.errors import StoreError

Condition = Mapping[str, Any]
"""For each dotted key a value, a list of values, a range `(low, high)` (both included, None for no end), or a function that says yes or no.

A list as a value is written inside a list.
"""

_MISSING = object()


def is_met(cond: Condition | None, config: Mapping[str, Any]) -> bool:
    """Whether a config, as plain values, is as `cond` wants it. A key that it does not have meets nothing.

    >>> is_met({"lr": (None, 0.1), "arch": ["ResNet18", "ResNet50"]}, {"lr": 0.01, "arch": "ResNet18"})
    True
    """
    return all(_is_met(wanted, _value(config, key)) for key, wanted in (cond or {}).items())


def _value(config: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return _MISSING
        config = config[part]
    return _as_given(config)


def _as_given(tree: Any) -> Any:
    """A stored value as it was given: NaN and the infinities are numbers again."""
    if isinstance(tree, list):
        return [_as_given(each) for each in tree]
    if not isinstance(tree, Mapping):
        return tree
    if tree.keys() == {".float"}:
        return float(tree[".float"])
    return {key: _as_given(value) for key, value in tree.items()}


def _is_met(wanted: Any, value: Any) -> bool:
    if value is _MISSING:
        return False
    if callable(wanted):
        return bool(wanted(value))
    if isinstance(wanted, list):
        return any(same(each, value) for each in wanted)
    if isinstance(wanted, tuple):
        if len(wanted) != 2:
            raise StoreError(f"{wanted!r} is no condition", hint="a tuple is a range: (low, high), None for no end; a list gives values")
        low, high = wanted
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (low is None or value >= low) and (high is None or value <= high)
    return same(wanted, value)
