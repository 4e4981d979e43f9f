"""Conditions on configs, written as dicts that map dotted keys to the accepted values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from trainmaster.config.paths import key_problem
from trainmaster.config.to_plain import is_same, value_to_plain
from trainmaster.errors import Problem, StoreError

Condition = Mapping[str, Any]
"""Maps keys to accepted values: a value, a list of values, a range `(low, high)` (inclusive, with None for no limit),
or a function that returns True or False.

Keys can be dotted or nested: `{"optim": {"lr": 0.1}}` means the same as `{"optim.lr": 0.1}`. In both cases, the group
may contain other keys too. To accept a value that is itself a list, wrap it in another list.
"""


class Nothing(Enum):
    """Placeholders for a value that a run does not have, or that is not known yet."""

    MISSING = "the run does not have the name"
    UNKNOWN = "the run was not read yet"


def value_tests(condition: Condition | None) -> list[tuple[str, Callable[[Any], bool]]]:
    """Return the dotted keys in a condition, each with a function that checks whether the condition accepts a value.

    >>> [(key, is_accepted(0.01)) for key, is_accepted in value_tests({"optim": {"lr": (None, 0.1)}})]
    [('optim.lr', True)]
    """
    return [(".".join(path), _test(accepted, path)) for path, accepted in _leaves(condition or {})]


def value_at(tree: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the value or group at a path in a nested config, or `Nothing.MISSING` if there is none."""
    node: Any = tree
    for part in path:
        if type(node) is not dict or part not in node:
            return Nothing.MISSING
        node = node[part]
    return node


def restore_floats(tree: Any) -> Any:
    """Return a stored value with NaN and infinities, which are stored in the form `{".float": "nan"}`, converted back to floats."""
    if type(tree) is list:
        return [restore_floats(each) if type(each) in (dict, list) else each for each in tree]
    if type(tree) is not dict:
        return tree
    if ".float" in tree:  # no key of a config starts with a dot
        return float(tree[".float"])
    return {key: restore_floats(value) if type(value) in (dict, list) else value for key, value in tree.items()}


def _leaves(condition: Condition, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each key of a condition as a path, with the accepted values. An empty dict is treated as a value."""
    for key, accepted in condition.items():
        why = key_problem(key)
        if why:
            raise StoreError(f"a condition cannot have the key {key!r:.60}", why=why)
        path = (*above, *key.split("."))
        if isinstance(accepted, Mapping) and accepted:
            yield from _leaves(accepted, path)
        else:
            yield path, accepted


def _test(accepted: Any, path: tuple[str, ...]) -> Callable[[Any], bool]:
    """Return a function that checks whether a value is accepted."""
    if callable(accepted):
        return lambda value: bool(accepted(restore_floats(value)))  # a copy, so that the function cannot change the original
    if isinstance(accepted, tuple):
        return _range_test(accepted)
    problems: list[Problem] = []
    accepted = value_to_plain(accepted, path, problems)  # stored configs have no NumPy numbers or sets
    if problems:
        raise StoreError("a condition has a value that no config can have", wrong="\n".join(map(str, problems)))
    if isinstance(accepted, list):
        return lambda value: any(is_same(each, value) for each in accepted)
    kind = type(accepted)
    if kind in (str, int, bool):  # a fast path for the most common types, without calling `is_same`
        return lambda value: type(value) is kind and value == accepted
    return lambda value: is_same(accepted, value)


def _range_test(limits: tuple[Any, ...]) -> Callable[[Any], bool]:
    if len(limits) != 2:
        raise StoreError(
            f"{limits!r} is not a range", hint="a tuple is a range: (low, high), with None for no limit; use a list for several values"
        )
    low, high = limits
    return lambda value: type(value) in (int, float) and (low is None or value >= low) and (high is None or value <= high)
