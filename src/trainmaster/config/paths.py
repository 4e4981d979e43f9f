"""Dotted keys: `a.b` is `b` within `a`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainmaster.errors import ConfigError, Problem

Path = tuple[str | int, ...]

MAX_DEPTH = 100
"""Deeper nesting is no config; refusing it keeps every walk over one within Python's stack."""


MAX_VALUES = 50_000
MAX_BYTES = 4 * 2**20
"""What a config may have in values and in bytes: enough for any, and little enough to be refused at once."""


def dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


def split(key: Any) -> tuple[str, ...]:
    """The parts of a dotted key.

    >>> split("train.lr")
    ('train', 'lr')
    """
    why = wrong_key(key)
    if why:
        raise ConfigError.of("a key", [Problem(repr(key), why)])
    return tuple(key.split("."))


def wrong_key(key: Any) -> str:
    """Why `key` cannot be a key of a config; empty if it can."""
    if not isinstance(key, str):
        return f"a key is text, this one is {type(key).__name__}"
    if not key:
        return "a key has no empty parts"
    if "." in key:
        if not all(key.split(".")):
            return "a key has no empty parts"
        if key.count(".") >= MAX_DEPTH:
            return f"a key is at most {MAX_DEPTH} deep"
    if not key.isascii() and any("\ud800" <= char <= "\udfff" for char in key):
        return "a key is valid Unicode; this one has half of a surrogate pair"
    return ""


def too_deep(path: Path) -> ConfigError:
    """The error for what is nested too deep at `path`."""
    return ConfigError.of(
        "a config", [Problem(dotted(path[:8]) + "..." * bool(path), f"is nested more than {MAX_DEPTH} deep, or contains itself")]
    )


def nest(mapping: Mapping[str, Any], clash: Callable[[Path], None], at: Path = ()) -> dict[str, Any]:
    """`mapping` with its dotted keys turned into nested dicts; `clash` is told of each key given twice."""
    if len(at) >= MAX_DEPTH:
        raise too_deep(at)
    result: dict[str, Any] = {}
    for key, value in mapping.items():
        *groups, last = key.split(".")
        node: Any = result
        path = at
        for part in groups:
            path += (part,)
            below = node.setdefault(part, {})
            if not isinstance(below, Mapping):
                clash(path)
                break
            node = below
        else:
            _merge(node, last, nest(value, clash, (*path, last)) if isinstance(value, Mapping) else value, clash, (*path, last))
    return result


def _merge(node: dict[str, Any], key: str, value: Any, clash: Callable[[Path], None], path: Path) -> None:
    if key not in node:
        node[key] = value
    elif isinstance(node[key], dict) and isinstance(value, dict):
        for name, each in value.items():
            _merge(node[key], name, each, clash, (*path, name))
    else:
        clash(path)


def leaves(tree: Any, into_lists: bool, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf below `tree` with its dotted key; an empty dict or list is a leaf, an empty `tree` has none."""
    branches = (dict, list, tuple) if into_lists else (dict,)
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        path = f"{at}.{key}" if at else str(key)
        if isinstance(value, branches) and value:
            yield from leaves(value, into_lists, path)
        else:
            yield path, value
