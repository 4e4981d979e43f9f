"""Functions for dotted keys (`a.b` is `b` in the group `a`) and for nested plain values, and limits on the size of a config."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainmaster.errors import ConfigError, Problem

Path = tuple[str | int, ...]

MAX_DEPTH = 100
"""How deeply a config may be nested. The limit keeps recursive functions below Python's recursion limit."""


MAX_VALUES = 50_000
MAX_BYTES = 4 * 2**20
"""The maximum numbers of values and bytes in a config. Real configs are far smaller. The limits allow huge files to be rejected quickly."""


def dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


def split(key: Any) -> tuple[str, ...]:
    """Split a dotted key into its parts.

    >>> split("train.lr")
    ('train', 'lr')
    """
    why = key_problem(key)
    if why:
        raise ConfigError.of("a key", [Problem(repr(key), why)])
    return tuple(key.split("."))


def get_child(node: Any, part: str, default: Any = None) -> Any:
    """Return the element of a dict or list that one part of a dotted key refers to, or `default` if there is none."""
    if isinstance(node, dict):
        return node.get(part, default)
    if isinstance(node, list | tuple) and part.isdecimal() and len(part) < 10 and int(part) < len(node):
        return node[int(part)]
    return default


def key_problem(key: Any) -> str:
    """Return why `key` cannot be a key of a config, or an empty string if it is valid."""
    if not isinstance(key, str):
        return f"a key must be text, not {type(key).__name__}"
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
    """Create the error for a value at `path` that is nested too deeply."""
    return ConfigError.of(
        "a config", [Problem(dotted(path[:8]) + "..." * bool(path), f"is nested more than {MAX_DEPTH} deep, or contains itself")]
    )


def nest(mapping: Mapping[str, Any], clash: Callable[[Path], None], at: Path = ()) -> dict[str, Any]:
    """Return `mapping` with dotted keys turned into nested dicts. If a key occurs twice, call `clash` with its path."""
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


def map_leaves(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Copy the dicts, lists and tuples in `tree`, with `function` applied to everything else."""
    if isinstance(tree, dict):
        return {key: map_leaves(value, function) for key, value in tree.items()}
    if isinstance(tree, list):
        return [map_leaves(value, function) for value in tree]
    return tuple(map_leaves(value, function) for value in tree) if isinstance(tree, tuple) else function(tree)


def leaves(tree: Any, into_lists: bool, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of `tree` with its dotted key. An empty dict or list inside `tree` is a leaf, but an empty `tree` has no leaves."""
    branches = (dict, list, tuple) if into_lists else (dict,)
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        path = f"{at}.{key}" if at else str(key)
        if isinstance(value, branches) and value:
            yield from leaves(value, into_lists, path)
        else:
            yield path, value
